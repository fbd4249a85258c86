package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/status"

	"github.com/finalizerd/finalizerd/client"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

const localTarget = "127.0.0.1:2748"

// connection is how the commands that call the service find it.
type connection struct {
	target    string
	tls       bool
	caFile    string
	insecure  bool
	tokenFile string
}

const connectionHelp = `The service is looked for at 127.0.0.1:2748: run this inside its pod (kubectl
exec deploy/finalizerd -- /finalizerd ...), forward its port, or give --target.
Plaintext is spoken to this machine only, and TLS to any other.`

// register adds the flags of the connection, whose defaults may come from the
// environment. Flags that say what to act upon may not: a forgotten variable
// must not widen a release.
func (c *connection) register(all *pflag.FlagSet) {
	flags := pflag.NewFlagSet("connection", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.StringVar(&c.target, "target", localTarget, "gRPC `target` of the service, such as dns:///finalizerd.finalizerd.svc:2748")
	flags.BoolVar(&c.tls, "tls", false, "speak TLS to this machine too, checked against the roots of the system")
	flags.StringVar(&c.caFile, "ca-file", "", "speak TLS, checked against the certificates in this PEM `file`")
	flags.BoolVar(&c.insecure, "insecure", false, "speak plaintext to any target, for networks that protect traffic themselves")
	flags.StringVar(&c.tokenFile, "token-file", "", "`file` with the bearer token to send")
	documentEnv(flags)
	all.AddFlagSet(flags)
}

// fromEnvironment sets what the command line left alone.
func (c *connection) fromEnvironment(flags *pflag.FlagSet, environ []string) error {
	for _, name := range []string{"target", "tls", "ca-file", "insecure", "token-file"} {
		value := lookup(environ, envName(name))
		if value == "" || flags.Changed(name) {
			continue
		}
		if err := flags.Set(name, value); err != nil {
			return &usageError{fmt.Errorf("the environment variable %s has the wrong value %q: %w", envName(name), value, err)}
		}
	}
	return nil
}

// openFrom is open after fromEnvironment.
func (c *connection) openFrom(flags *pflag.FlagSet, environ []string) (*client.Client, error) {
	if err := c.fromEnvironment(flags, environ); err != nil {
		return nil, err
	}
	return c.open()
}

func (c *connection) open() (*client.Client, error) {
	opts := []client.Option{client.WithUserAgent("finalizerd-cli/" + buildVersion().Version), client.WithDefaultTimeout(callTimeout)}
	if c.tokenFile != "" {
		opts = append(opts, client.WithTokenFile(c.tokenFile))
	}
	with := func(o client.Option) (*client.Client, error) {
		conn, err := client.New(c.target, append(opts, o)...)
		if err != nil {
			return nil, &usageError{err}
		}
		return conn, nil
	}
	switch {
	case c.insecure && (c.tls || c.caFile != ""):
		return nil, &usageError{fmt.Errorf("--insecure excludes --tls and --ca-file")}
	case c.insecure:
		return with(client.WithInsecureRemote())
	case c.tls || c.caFile != "":
		return with(client.WithTLS(c.caFile))
	}
	// The client refuses this for another machine.
	if conn, err := with(client.WithInsecure()); err == nil {
		return conn, nil
	}
	return with(client.WithTLS(""))
}

// callTimeout is the deadline of one call: a batch of releases passes the
// adaptive limit of the service, which may have shrunk.
const callTimeout = 2 * time.Minute

// explain says what a failed call means to whoever typed the command.
func (c *connection) explain(err error) error {
	st := status.Convert(err)
	if reason := client.Reason(err); reason != finalizerv1.ErrorReason_ERROR_REASON_UNSPECIFIED {
		advice := adviceFor(reason)
		return fmt.Errorf("the service at %s refused: %s (%s)%s", c.target, st.Message(), reasonName(reason), cmp.Or(prefixed("; ", advice), ""))
	}
	return fmt.Errorf("the service at %s does not answer: %s; correct --target, or --tls and --ca-file", c.target, st.Message())
}

func reasonName(r finalizerv1.ErrorReason) string {
	return strings.TrimPrefix(r.String(), "ERROR_REASON_")
}

func holdName(r finalizerv1.HoldReason) string {
	return strings.TrimPrefix(r.String(), "HOLD_REASON_")
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}
