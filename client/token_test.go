package client_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/finalizerd/finalizerd/client"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/google/go-cmp/cmp"
)

func TestCallsCarryTheTokenOfNowAndTheUserAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	f := &fakeService{release: func(context.Context, int, *finalizerv1.ReleasePodRequest) (*finalizerv1.ReleasePodResponse, error) {
		return released("", ""), nil
	}}
	write(t, path, "first")
	c := connect(t, f, client.WithTokenFile(path), client.WithUserAgent("argo-server/v4.0.5"))
	for _, token := range []string{"first", "second-one"} {
		write(t, path, token)
		if _, err := c.ReleasePod(t.Context(), &finalizerv1.ReleasePodRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"Bearer first", "Bearer second-one"}, f.tokens); diff != "" {
		t.Errorf("tokens (-want +got):\n%s", diff)
	}
	if len(f.agents) == 0 || !strings.HasPrefix(f.agents[0], "argo-server/v4.0.5 ") {
		t.Errorf("user agents %q", f.agents)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ReleasePod(t.Context(), &finalizerv1.ReleasePodRequest{}); err == nil || len(f.tokens) != 2 {
		t.Errorf("a call without a token file: %v, and %d tokens were sent", err, len(f.tokens))
	}
}
