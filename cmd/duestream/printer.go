package main

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

func (a *app) colorFlag(root *cobra.Command) {
	a.color = "auto"
	root.PersistentFlags().Var(&a.color, "color", "auto, always or never; auto: on a terminal, unless NO_COLOR is set or TERM is dumb")
	offerValues(root, "color", term.ColorModes...)
}

// paint returns the colours for standard output or standard error.
func (a *app) paint(stream any) term.Paint { return a.color.Paint(stream) }

// table writes rows in columns, the first one as their header. Cells must not hold tabs.
func (a *app) table(rows [][]string) { a.paint(a.out).Table(a.out, rows) }

// warning writes a line about what looks wrong.
func (a *app) warning(format string, args ...any) {
	fmt.Fprintln(a.out, a.paint(a.out).Text(term.Alert, "! "+fmt.Sprintf(format, args...)))
}

func (a *app) outlet(raw io.Writer) *term.Outlet {
	return term.NewOutlet(raw, func() bool { return a.json }, func() term.Paint { return a.paint(raw) })
}

// note prints a remark that is no result to standard error; with --json as {"note":"…"}.
func (a *app) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !a.json {
		fmt.Fprintln(a.err, text)
		return
	}
	_ = encoder(a.err).Encode(struct {
		Note string `json:"note"`
	}{text})
}

// encoder returns an encoder that does not escape for HTML.
func encoder(w io.Writer) *json.Encoder {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc
}

// reported is an error as JSON.
type reported struct {
	Error string `json:"error"`
	Code  int    `json:"code"`
	Hint  string `json:"hint,omitempty"`
}

// print writes value as JSON, or calls text, as --json asks for. JSON has one shape in all commands: one object per line. A
// list is a line for each of its items, and none when it is empty.
func (a *app) print(value any, text func()) error {
	if !a.json {
		text()
		return nil
	}
	if list := reflect.ValueOf(value); list.Kind() == reflect.Slice {
		for i := range list.Len() {
			if err := a.printLine(list.Index(i).Interface()); err != nil {
				return err
			}
		}
		return nil
	}
	return a.printLine(value)
}

// done returns a verb for what was done, or would be done without --dry-run.
func done(what string, dryRun bool) string {
	if dryRun {
		return "would be " + what
	}
	return what
}

// text returns the writer for output that is for people only: with --json it discards.
func (a *app) text() io.Writer {
	if a.json {
		return io.Discard
	}
	return a.out
}

// listing prints items: with --json each one at once as a line, else all of them at the end as a table.
type listing struct {
	a      *app
	rows   [][]string
	failed error
}

// list begins a listing, with the titles of its columns.
func (a *app) list(titles ...string) *listing { return &listing{a: a, rows: [][]string{titles}} }

// add adds an item, and how its row shows it.
func (l *listing) add(item any, row ...string) {
	if l.a.json && l.failed == nil {
		l.failed = l.a.printLine(item)
	} else if !l.a.json {
		l.rows = append(l.rows, row)
	}
}

// end prints the table, or that there is none of what was to be listed.
func (l *listing) end(none string) error {
	switch {
	case l.a.json:
		return l.failed
	case len(l.rows) == 1:
		fmt.Fprintln(l.a.out, none)
	default:
		term.Table(l.a.out, l.rows)
	}
	return nil
}

// more prints a text about items that were not listed: with --json as a note, else after the table. An empty text prints
// nothing.
func (a *app) more(text string) {
	switch {
	case text == "":
	case a.json:
		a.note("%s", text)
	default:
		fmt.Fprintln(a.out, text)
	}
}

// printLine writes value as one line of JSON.
func (a *app) printLine(value any) error { return encoder(a.out).Encode(value) }
