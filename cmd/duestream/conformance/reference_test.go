package conformance

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

//go:generate env DUESTREAM_TEST_UPDATE=1 go test . -run ^TestDocumentListsEveryCase$ -count=1

// docs/reference/conformance-cases.md lists every case and every watched rule. DUESTREAM_TEST_UPDATE=1 writes it anew.
func TestDocumentListsEveryCase(t *testing.T) {
	const name = "conformance-cases.md"
	page := casesPage()
	if os.Getenv("DUESTREAM_TEST_UPDATE") != "" {
		if err := os.WriteFile(reference+name, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, name) != page {
		t.Errorf("%s is out of date: run make reference", name)
	}
}

// casesPage returns the page that lists every watched rule and every case.
func casesPage() string {
	var b strings.Builder
	b.WriteString("# Conformance cases\n\n<!-- Written by `make reference` from the kit. Do not edit. -->\n\n" +
		"These are all rules and cases of [`duestream conformance`](conformance.md). Each names its section of\n" +
		"[the protocol](protocol.md). A level also has the rules and cases of the levels below it.\n\n" +
		"Contents: [Watched rules](#watched-rules) · [Cases of workers](#cases-of-workers) ·\n" +
		"[Cases of producers](#cases-of-producers)\n\n" +
		"## Watched rules\n\nThe kit judges these rules while every case runs.\n")
	shared := map[string]bool{}
	for _, r := range Rules(Worker) {
		shared[r.Name] = true
	}
	for _, kind := range []Kind{Worker, Producer} {
		fmt.Fprintf(&b, "\n### Rules of %ss\n\n", kind)
		if kind == Producer {
			b.WriteString("The rules whose names begin with `keeps-` (keys, streams, groups, registry, server) " +
				"hold as well.\n\n")
		}
		b.WriteString("| Rule | Level | What it says | Section |\n|---|---|---|---|\n")
		for _, r := range Rules(kind) {
			if kind == Worker || !shared[r.Name] {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.Name, r.Level, r.Rule, r.Section)
			}
		}
	}
	for _, kind := range []Kind{Worker, Producer} {
		fmt.Fprintf(&b, "\n## Cases of %ss\n\n| Case | Level | Rule | Section |\n|---|---|---|---|\n", kind)
		for _, c := range Cases(kind, Complete) {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", c.Name, c.Level, c.Rule, c.Section)
		}
	}
	return b.String()
}
