package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/finalizerd/finalizerd/client"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

// scope narrows which held pods a command is about.
type scope struct {
	namespace, workflow, reason string
}

func (s *scope) register(flags *pflag.FlagSet) {
	flags.StringVarP(&s.namespace, "namespace", "n", "", "only pods of this namespace; empty: of all that the service watches")
	flags.StringVar(&s.workflow, "workflow", "", "only pods of this workflow; needs --namespace")
	flags.StringVar(&s.reason, "reason", "", "only pods held for this `REASON`, such as NOT_CAPTURED, UNOWNED or HIDDEN")
}

// request is the query for a page of pods.
func (s *scope) request() (*finalizerv1.ListPodsRequest, error) {
	if s.workflow != "" && s.namespace == "" {
		return nil, &usageError{errors.New("--workflow needs --namespace")}
	}
	r := &finalizerv1.ListPodsRequest{Namespace: s.namespace, Workflow: s.workflow, PageSize: pageSize}
	if s.reason != "" {
		n, ok := finalizerv1.HoldReason_value["HOLD_REASON_"+strings.ToUpper(s.reason)]
		if !ok || n == 0 {
			return nil, &usageError{fmt.Errorf("--reason must be one of %s, got %q", strings.Join(reasonNames(), ", "), s.reason)}
		}
		r.Reason = finalizerv1.HoldReason(n)
	}
	return r, nil
}

func reasonNames() []string {
	var names []string
	for n, name := range finalizerv1.HoldReason_name {
		if n != 0 {
			names = append(names, strings.TrimPrefix(name, "HOLD_REASON_"))
		}
	}
	slices.Sort(names)
	return names
}

// pageSize is the most that the service puts into one page.
const pageSize = 1000

// walk calls page with each page of held pods in turn.
func walk(ctx context.Context, c *client.Client, query *finalizerv1.ListPodsRequest, page func([]*finalizerv1.Pod) error) error {
	r := &finalizerv1.ListPodsRequest{Namespace: query.GetNamespace(), Workflow: query.GetWorkflow(), Reason: query.GetReason(), PageSize: query.GetPageSize()}
	for {
		resp, err := c.ListPods(ctx, r)
		if err != nil {
			return err
		}
		if err := page(resp.GetPods()); err != nil {
			return &localError{err}
		}
		if r.PageToken = resp.GetNextPageToken(); r.PageToken == "" {
			return nil
		}
	}
}

// localError did not come from the service.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

func newPods(environ []string) *cobra.Command {
	var at connection
	var only scope
	var output string
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "List the held pods, and why each is held",
		Long: `List the pods that carry the finalizer: why each is held, since when, and when
the service releases it by itself ("-": no time is known). It changes nothing.

` + connectionHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return &usageError{fmt.Errorf("--output must be table or json, got %q", output)}
			}
			query, err := only.request()
			if err != nil {
				return err
			}
			c, err := at.openFrom(cmd.Flags(), environ)
			if err != nil {
				return err
			}
			defer c.Close()
			list := listing{out: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(), json: output == "json"}
			err = list.run(cmd.Context(), c, query)
			var local *localError
			if err != nil && !errors.As(err, &local) {
				return at.explain(err)
			}
			return err
		},
	}
	cmd.Flags().SortFlags = false
	at.register(cmd.Flags())
	only.register(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}

// listing prints pods as they come.
type listing struct {
	out, errs io.Writer
	json      bool
}

func (l *listing) run(ctx context.Context, c *client.Client, query *finalizerv1.ListPodsRequest) error {
	counts := make(map[string]int)
	show, end := l.table()
	if l.json {
		show, end = l.document()
	}
	err := walk(ctx, c, query, func(page []*finalizerv1.Pod) error {
		for _, p := range page {
			counts[holdName(p.GetHoldReason())]++
		}
		return show(page)
	})
	if err != nil {
		return err
	}
	if err := end(); err != nil {
		return &localError{err}
	}
	fmt.Fprintln(l.errs, total(counts))
	return nil
}

// total is like "3 held pods: 2 NOT_CAPTURED, 1 UNOWNED", the most first.
func total(counts map[string]int) string {
	n := 0
	for _, c := range counts {
		n += c
	}
	return fmt.Sprintf("%s%s", plural(n, "held pod"), prefixed(": ", breakdown(counts)))
}

func breakdown(counts map[string]int) string {
	names := make([]string, 0, len(counts))
	for name := range counts {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return strings.Compare(a, b)
	})
	parts := make([]string, len(names))
	for i, name := range names {
		parts[i] = fmt.Sprintf("%d %s", counts[name], name)
	}
	return strings.Join(parts, ", ")
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (l *listing) table() (show func([]*finalizerv1.Pod) error, end func() error) {
	w := tabwriter.NewWriter(l.out, 0, 0, 2, ' ', 0)
	header := "NAMESPACE\tPOD\tWORKFLOW\tREASON\tFOR\tRELEASES\tEXPLANATION\n"
	show = func(page []*finalizerv1.Pod) error {
		now := time.Now()
		for _, p := range page {
			fmt.Fprint(w, header) // an error comes with Flush
			header = ""
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.GetNamespace(), p.GetName(), orDash(p.GetWorkflow()),
				holdName(p.GetHoldReason()), ago(p.GetSinceTime(), now), until(p.GetReleaseTime(), now), p.GetExplanation())
		}
		return w.Flush() // a page at a time, so that a long list begins at once
	}
	return show, func() error { return nil }
}

// document prints one JSON object, {"pods": [...]}, with each pod as the REST API
// has it.
func (l *listing) document() (show func([]*finalizerv1.Pod) error, end func() error) {
	sep := `{"pods":[` + "\n"
	show = func(page []*finalizerv1.Pod) error {
		for _, p := range page {
			raw, err := protojson.Marshal(p)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(l.out, "%s%s", sep, raw); err != nil {
				return err
			}
			sep = ",\n"
		}
		return nil
	}
	end = func() error {
		if strings.HasPrefix(sep, "{") {
			_, err := fmt.Fprintln(l.out, `{"pods":[]}`)
			return err
		}
		_, err := fmt.Fprintln(l.out, "\n]}")
		return err
	}
	return show, end
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func ago(t *timestamppb.Timestamp, now time.Time) string {
	if t == nil {
		return "-"
	}
	return max(now.Sub(t.AsTime()), 0).Round(time.Second).String()
}

func until(t *timestamppb.Timestamp, now time.Time) string {
	switch {
	case t == nil:
		return "-"
	case t.AsTime().After(now):
		return "in " + t.AsTime().Sub(now).Round(time.Second).String()
	}
	return "now"
}
