package api

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
)

var update = flag.Bool("update", false, "write the error table into README.md")

const (
	readme     = "../../README.md"
	tableMark  = "<!-- error-table -->\n"
	tableIntro = "| code | HTTP | reason | RetryInfo | when |\n|---|---|---|---|---|\n"
)

// wireName is a code as the protocol spells it, not as Go does.
func wireName(c codes.Code) string {
	var b strings.Builder
	for i, r := range c.String() {
		if i > 0 && 'A' <= r && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	if c == codes.Canceled {
		return "CANCELLED"
	}
	return strings.ToUpper(b.String())
}

// The README's table is the table in the code. It stands right below its mark;
// "go test ./server/api -run README -update" writes it there.
func TestREADMEHasTheErrorTable(t *testing.T) {
	var b strings.Builder
	b.WriteString(tableIntro)
	for _, row := range Table() {
		retry := ""
		if row.Retry > 0 {
			retry = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %d | `%s` | %s | %s |\n", wireName(row.Code), row.HTTP, row.ReasonName(), retry, row.Means)
	}
	raw, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	before, after, ok := strings.Cut(string(raw), tableMark)
	if !ok {
		t.Fatalf("the README has no line %q", tableMark)
	}
	rest := after
	for strings.HasPrefix(rest, "|") {
		_, rest, _ = strings.Cut(rest, "\n")
	}
	found := strings.TrimSuffix(after, rest)
	switch {
	case found == b.String():
	case *update:
		if err := os.WriteFile(readme, []byte(before+tableMark+b.String()+rest), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the README's error table is stale or missing: run this test with -update. Want:\n%s", b.String())
	}
}
