package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

const (
	envPrefix    = "FINALIZERD_"
	clientTarget = "FINALIZERD_TARGET"
)

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// documentEnv adds each flag's variable to its help.
func documentEnv(flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) { f.Usage += " [" + envName(f.Name) + "]" })
}

// applyEnv sets the flags that the command line left alone from the
// environment. An empty variable counts as unset. A variable with our prefix
// that belongs to no flag is refused, since a misspelt one would silently do
// nothing, except for those that Kubernetes itself sets in each pod beside a
// Service of the name finalizerd, and the one that package client reads.
func applyEnv(flags *pflag.FlagSet, environ []string) error {
	ofKubernetes := regexp.MustCompile(`^FINALIZERD_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
	known := make(map[string]*pflag.Flag)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			known[envName(f.Name)] = f
		}
	})
	for _, entry := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, envPrefix) {
			continue
		}
		f, ok := known[name]
		switch {
		case !ok && (name == clientTarget || ofKubernetes.MatchString(name)):
		case !ok:
			return &usageError{fmt.Errorf("the environment variable %s belongs to no flag; unset it, or see finalizerd serve --help for the names", name)}
		case f.Changed || value == "":
		default:
			if err := flags.Set(f.Name, value); err != nil {
				return &usageError{fmt.Errorf("the environment variable %s has the wrong value %q: %w", name, value, err)}
			}
		}
	}
	return nil
}
