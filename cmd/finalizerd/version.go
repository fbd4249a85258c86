package main

import (
	"encoding/json"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is what the Go toolchain has written into the binary.
type version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified"` // the checkout had changes
	Go       string `json:"go"`
}

func buildVersion() version {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version{Version: "unknown"}
	}
	v := version{Version: info.Main.Version, Go: info.GoVersion}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := buildVersion()
			switch output {
			case "json":
				return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			case "text":
			default:
				return &usageError{fmt.Errorf("--output must be text or json, got %q", output)}
			}
			line := "finalizerd " + v.Version
			if v.Revision != "" {
				line += " " + v.Revision
			}
			if v.Modified {
				line += " (modified)"
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), line, v.Go)
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}
