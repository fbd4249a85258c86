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

// lend adds the token unless the request has credentials of its own. Without a
// readable file it adds nothing: the API server then says 401.
func (a *account) lend(header http.Header) {
	if a.file == "" || header.Get("Authorization") != "" {
		return
	}
	if token, err := a.current(); err == nil {
		header.Set("Authorization", "Bearer "+token)
	}
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
