package client

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func TestWhatIsOnThisMachine(t *testing.T) {
	tests := map[string]bool{
		"127.0.0.1:2748":                  true,
		"127.8.9.10:2748":                 true,
		"[::1]:2748":                      true,
		"::1":                             true,
		"[::ffff:127.0.0.1]:2748":         true,
		"localhost:2748":                  true,
		"localhost":                       true,
		"dns:localhost:2748":              true,
		"dns:///localhost:2748":           true,
		"dns://8.8.8.8/127.0.0.1:2748":    true,
		"passthrough:///[::1]:2748":       true,
		"unix:///run/finalizerd.sock":     true,
		"unix-abstract:finalizerd":        true,
		DefaultTarget:                     false,
		"10.0.0.1:2748":                   false,
		"0.0.0.0:2748":                    false,
		"localhost.example.com:2748":      false,
		"127.0.0.1.example.com:2748":      false,
		"dns://127.0.0.1/finalizerd:2748": false,
		"dns://localhost:2748":            false,
		"xds:///127.0.0.1:2748":           false,
		"":                                false,
	}
	for target, want := range tests {
		if got := onThisMachine(target); got != want {
			t.Errorf("onThisMachine(%q) = %v, want %v", target, got, want)
		}
	}
}

func TestPlaintextIsRefusedWhereItHarms(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	put(t, token, "secret")
	const here, away = "127.0.0.1:2748", "dns:///finalizerd.finalizerd.svc:2748"
	tests := map[string]struct {
		target string
		opts   []Option
		want   string // part of the error; empty: none
	}{
		"plaintext on this machine is fine":                     {here, []Option{WithInsecure()}, ""},
		"a token in plaintext on this machine is fine":          {here, []Option{WithInsecure(), WithTokenFile(token)}, ""},
		"TLS with a token is fine":                              {away, []Option{WithTokenFile(token)}, ""},
		"plaintext to another machine is refused":               {away, []Option{WithInsecure()}, "would leave this machine"},
		"plaintext to another machine is fine when it is asked": {away, []Option{WithInsecureRemote()}, ""},
		"a token in plaintext to another machine is refused":    {away, []Option{WithInsecure(), WithTokenFile(token)}, "in plaintext"},
		"even when plaintext is asked for":                      {away, []Option{WithInsecureRemote(), WithTokenFile(token)}, "in plaintext"},
		"and when it comes in through a dial option":            {away, []Option{WithTokenFile(token), WithDialOptions(grpc.WithTransportCredentials(insecure.NewCredentials()))}, "transport level security"},
		"TLS and plaintext exclude each other":                  {here, []Option{WithTLS(""), WithInsecure()}, "exclude each other"},
		"a token file that is missing is refused":               {away, []Option{WithTokenFile(token + "x")}, "token file"},
		"a CA file that is missing is refused":                  {away, []Option{WithTLS(token + "x")}, "CA file"},
		"a CA file without a certificate is refused":            {away, []Option{WithTLS(token)}, "no certificate"},
		"an empty target is refused":                            {"", nil, "target is empty"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := New(tt.target, tt.opts...)
			if err == nil {
				defer c.Close()
			}
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("New: %v, want %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error shows the token: %v", err)
			}
		})
	}
}

func TestInCluster(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	put(t, token, "secret")
	broken := filepath.Join(t.TempDir(), "broken")
	put(t, broken, "")
	tests := map[string]struct {
		env, token string
		opts       []Option
		target     string
		fails      bool
	}{
		"the Service of the default installation":       {token: token, target: DefaultTarget},
		"the variable overrides it":                     {env: "dns:///other:1", token: token, target: "dns:///other:1"},
		"a pod without a token calls without":           {token: token + "x", target: DefaultTarget},
		"a pod whose token is unusable is told so":      {token: broken, fails: true},
		"plaintext to another machine leaves the token": {token: broken, opts: []Option{WithInsecureRemote()}, target: DefaultTarget},
		"plaintext on this machine keeps it":            {env: "127.0.0.1:2748", token: broken, opts: []Option{WithInsecure()}, fails: true},
		"a token file that was asked for is used":       {token: broken, opts: []Option{WithTokenFile(token)}, target: DefaultTarget},
		"and is not left out in plaintext":              {token: token, opts: []Option{WithTokenFile(token), WithInsecureRemote()}, fails: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := fromEnvironment(func(string) string { return tt.env }, tt.token, tt.opts)
			if (err != nil) != tt.fails {
				t.Fatalf("InCluster: %v, fails: want %v", err, tt.fails)
			}
			if err != nil {
				return
			}
			defer c.Close()
			if got := c.conn.Target(); got != tt.target {
				t.Errorf("target %q, want %q", got, tt.target)
			}
		})
	}
}

func TestARotatedTokenIsTakenUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	check := func(t *testing.T, f *tokenFile, want string) {
		t.Helper()
		got, err := f.GetRequestMetadata(t.Context())
		if err != nil || got["authorization"] != want {
			t.Errorf("header %q, %v, want %q", got["authorization"], err, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		f := &tokenFile{path: path}
		put(t, path, " first\n")
		check(t, f, "Bearer first")

		put(t, path, "second-and-longer")
		check(t, f, "Bearer second-and-longer")

		// The same size and time: only age tells.
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		put(t, path, "third--and-longer")
		if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
			t.Fatal(err)
		}
		check(t, f, "Bearer second-and-longer")
		<-time.After(tokenAge)
		check(t, f, "Bearer third--and-longer")

		// As the kubelet does it: another file takes the name.
		put(t, path+".new", "fourth-and-longer")
		later := info.ModTime().Add(time.Second)
		if err := os.Chtimes(path+".new", later, later); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		check(t, f, "Bearer fourth-and-longer")

		for _, unusable := range []string{"", "\n", "two tokens", "with\x00control"} {
			put(t, path, unusable)
			if got, err := f.GetRequestMetadata(t.Context()); err == nil {
				t.Errorf("a file with %q gave %q", unusable, got)
			}
		}
		put(t, path, "fifth")
		check(t, f, "Bearer fifth")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if got, err := f.GetRequestMetadata(t.Context()); err == nil {
			t.Errorf("a missing file gave %q", got)
		}
	})
}

func TestARotatedCAIsTakenUp(t *testing.T) {
	caFile := filepath.Join(t.TempDir(), "ca.crt")
	before, beforePEM := selfSigned(t)
	after, afterPEM := selfSigned(t)
	put(t, caFile, beforePEM)
	creds, err := newRoots(caFile)
	if err != nil {
		t.Fatal(err)
	}
	creds = creds.Clone()
	handshake := func(cert tls.Certificate) error {
		t.Helper()
		// Not net.Pipe: without a buffer, a client that refuses and a server that
		// is still writing wait for each other.
		listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			// The server's view of a refused handshake is of no interest.
			_ = conn.(*tls.Conn).Handshake()
		}()
		defer func() {
			_ = listener.Close()
			<-served
		}()
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _, err = creds.ClientHandshake(t.Context(), "finalizerd.test:2748", conn)
		return err
	}
	if err := handshake(before); err != nil {
		t.Errorf("the CA of the file: %v", err)
	}
	if err := handshake(after); err == nil {
		t.Error("a CA that is not in the file was accepted")
	}
	put(t, caFile, afterPEM)
	if err := handshake(after); err != nil {
		t.Errorf("the CA after rotation: %v", err)
	}
	if err := handshake(before); err == nil {
		t.Error("the CA before rotation is still accepted")
	}
	put(t, caFile, "")
	if err := handshake(after); err == nil {
		t.Error("an empty CA file accepts anything")
	}
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func selfSigned(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "finalizerd.test"},
		DNSNames:              []string{"finalizerd.test"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
