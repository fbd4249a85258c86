package proxy

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// tokenAge is how long a token is used before its file is read again. The
// kubelet replaces projected tokens long before they expire.
const tokenAge = 10 * time.Second

// bearerProtocol begins the element of a WebSocket's protocols that has a bearer
// token, from programs that cannot set headers.
const bearerProtocol = "base64url.bearer.authorization.k8s.io."

// account lends its token to requests that come without credentials.
type account struct {
	file string

	mu    sync.Mutex
	token string
	read  time.Time
}

// newAccount fails when the file cannot be used now.
func newAccount(file string) (*account, error) {
	a := &account{file: file}
	if file == "" {
		return a, nil
	}
	_, err := a.current()
	return a, err
}

// lend adds the token to what goes out unless the request came in with
// credentials of its own, also with some that it let be taken off on the way
// (Connection: Authorization). Without a readable file it adds nothing: to the
// API server the request is then anonymous.
func (a *account) lend(in, out http.Header) {
	if a.file == "" || hasCredentials(in) {
		return
	}
	if token, err := a.current(); err == nil {
		out.Set("Authorization", "Bearer "+token)
	}
}

// hasCredentials is true of empty and of wrong ones too: the API server judges
// them.
func hasCredentials(header http.Header) bool {
	if len(header.Values("Authorization")) > 0 {
		return true
	}
	for _, list := range header.Values("Sec-WebSocket-Protocol") {
		for protocol := range strings.SplitSeq(list, ",") {
			if strings.HasPrefix(strings.TrimSpace(protocol), bearerProtocol) {
				return true
			}
		}
	}
	return false
}

func (a *account) current() (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.read.IsZero() && time.Since(a.read) < tokenAge {
		return a.token, nil
	}
	content, err := os.ReadFile(a.file)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	token := strings.TrimSpace(string(content))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		// Its content must not get into an error.
		return "", fmt.Errorf("token file %s: not one token", a.file)
	}
	a.token, a.read = token, time.Now()
	return token, nil
}
