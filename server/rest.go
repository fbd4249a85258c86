package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/api"
)

const bodyTimeout = 30 * time.Second

// guard refuses what the gateway would let pass: bodies of any size, query
// parameters beside a body, bodies beside a GET, timeouts of any shape, calls
// that a browser makes for another site, and headers that claim another caller.
// With onlyLocal it also refuses a Host that is not loopback: a page whose own
// name was made to resolve to 127.0.0.1 would count as the same site.
func guard(next http.Handler, onlyLocal bool) http.Handler {
	timeout := regexp.MustCompile(`^[0-9]{1,8}[HMSmun]$`) // as gRPC defines it
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := origin.Check(r); err != nil || onlyLocal && !localHost(r.Host) {
			writeError(w, &api.Refusal{
				Reason:  pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED,
				Message: "a browser may not call on behalf of another site; use the loopback address of the service",
			})
			return
		}
		if t := r.Header.Get("Grpc-Timeout"); t != "" && !timeout.MatchString(t) {
			writeError(w, malformed("Grpc-Timeout must be at most 8 digits and one of H, M, S, m, u, n"))
			return
		}
		if !utf8.ValidString(r.URL.Path) {
			writeError(w, malformed("the path is not UTF-8"))
			return
		}
		if err := readBody(w, r); err != nil {
			writeError(w, err)
			return
		}
		r.Header.Del("X-Forwarded-For")
		r.Header.Del("X-Forwarded-Host")
		next.ServeHTTP(w, r)
	})
}

func localHost(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]") // no port
	}
	return isLoopback(host)
}

// readBody reads the body ahead, so that its size and what follows the first
// JSON value can be judged.
func readBody(w http.ResponseWriter, r *http.Request) error {
	rc := http.NewResponseController(w)
	// Not supported means a test's recorder, which needs none.
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxMessage))
	_ = rc.SetReadDeadline(time.Time{})
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return tooLarge()
	case err != nil:
		return malformed("the body could not be read in time or whole")
	case r.Method == http.MethodGet && len(body) > 0:
		return malformed("a GET takes no body")
	case r.Method == http.MethodPost && r.URL.RawQuery != "":
		return malformed("a POST takes its fields in the body, not in the query")
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return nil
}

func writeStatus(w http.ResponseWriter, code int, st *status.Status) {
	body, err := protojson.Marshal(st.Proto())
	if err != nil {
		// A detail of a type that is not linked in; the rest still tells.
		body = fmt.Appendf(nil, `{"code":%d,"message":%q}`, st.Code(), st.Message())
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n')) // the reader left
}
