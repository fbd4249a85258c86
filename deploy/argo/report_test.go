package argo

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"text/tabwriter"
)

// figure is one measured value. As JSON it is one line.
type figure struct {
	Level   string  `json:"level"`
	Story   string  `json:"story"`
	What    string  `json:"what"`
	Seconds float64 `json:"seconds"` // when Hangs, how long was watched
	Hangs   bool    `json:"hangs"`
	Note    string  `json:"note,omitempty"`
}

func (f figure) String() string {
	text := fmt.Sprintf("%.1f s", f.Seconds)
	if f.Seconds < 0.1 {
		text = fmt.Sprintf("%.2f ms", 1000*f.Seconds)
	}
	if f.Hangs {
		text = fmt.Sprintf("hangs (> %.0f s)", f.Seconds)
	}
	if f.Note != "" {
		text += ", " + f.Note
	}
	return text
}

// report collects the figures of all stories, and prints each as it comes.
type report struct {
	mu      sync.Mutex
	figures []figure
}

func (r *report) add(f figure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.figures = append(r.figures, f)
	line, err := json.Marshal(f)
	if err != nil {
		line = []byte(err.Error())
	}
	fmt.Fprintf(os.Stdout, "%s\n", line)
}

// print prints the table: a row for each thing measured, a column for each level.
func (r *report) print(out io.Writer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.figures) == 0 {
		return nil
	}
	type row struct{ story, what string }
	var rows []row
	cells := map[row]map[string]string{}
	for _, f := range r.figures {
		key := row{f.Story, f.What}
		if cells[key] == nil {
			cells[key] = map[string]string{}
			rows = append(rows, key)
		}
		cells[key][f.Level] = f.String()
	}
	slices.SortStableFunc(rows, func(a, b row) int { return slices.Compare([]string{a.story}, []string{b.story}) })
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nstory\tmeasured\tstock Argo alone\t+ finalizerd\t+ sidecar")
	for _, key := range rows {
		fmt.Fprintf(table, "%s\t%s", key.story, key.what)
		for _, l := range []level{stock, reconciler, sidecar} {
			cell := cells[key][l.String()]
			if cell == "" {
				cell = "-"
			}
			fmt.Fprintf(table, "\t%s", cell)
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}
