package client

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// tokenAge is how long a token is used without reading its file again, changed
// or not: a file system with coarse times can hide a change.
const tokenAge = time.Minute

// tokenFile is credentials.PerRPCCredentials from a file that may be replaced at
// any time.
type tokenFile struct {
	path string
	// secureOnly makes gRPC itself refuse plaintext, whatever options the caller
	// passed.
	secureOnly bool

	mu    sync.Mutex
	token string
	read  time.Time // when; zero: never
	mtime time.Time
	size  int64
}

// GetRequestMetadata returns the header with the token of now.
func (f *tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := f.current()
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity reports whether the token leaves the machine.
func (f *tokenFile) RequireTransportSecurity() bool { return f.secureOnly }

func (f *tokenFile) current() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	if !f.read.IsZero() && time.Since(f.read) < tokenAge && info.ModTime().Equal(f.mtime) && info.Size() == f.size {
		return f.token, nil
	}
	content, err := os.ReadFile(f.path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	token := strings.TrimSpace(string(content))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		// Its content must not get into an error.
		return "", fmt.Errorf("token file %s: not one token", f.path)
	}
	// Remembered only now: a file that was caught half-written is read again.
	// The times are those of before the read, so a change during it shows.
	f.token, f.read, f.mtime, f.size = token, time.Now(), info.ModTime(), info.Size()
	return token, nil
}
