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

// table prints rows in columns. The first row is the header. Cells must not hold tabs.
func (a *app) table(rows [][]string) { a.paint(a.out).Table(a.out, rows) }

// warning prints a line about something that looks wrong.
func (a *app) warning(format string, args ...any) {
	fmt.Fprintln(a.out, a.paint(a.out).Text(term.Alert, "! "+fmt.Sprintf(format, args...)))
}

func (a *app) outlet(raw io.Writer) *term.Outlet {
	return term.NewOutlet(raw, func() bool { return a.json }, func() term.Paint { return a.paint(raw) })
}

// note prints a remark to standard error; with --json as {"note":"…"}.
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

// reported is the JSON of an error.
type reported struct {
	Error string `json:"error"`
	Code  int    `json:"code"`
	Hint  string `json:"hint,omitempty"`
}

// print prints value as JSON with --json, and else calls text. JSON is always one object per line. A list is one line
// for each item, and no line if it is empty.
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

// done returns what for a change that was made, and "would be " and what for a dry run.
func done(what string, dryRun bool) string {
	if dryRun {
		return "would be " + what
	}
	return what
}

// text returns the writer for output for people. With --json it discards.
func (a *app) text() io.Writer {
	if a.json {
		return io.Discard
	}
	return a.out
}

// listing prints items: with --json one line at once for each, else a table at the end.
type listing struct {
	a      *app
	rows   [][]string
	failed error
}

// list begins a listing with the given column titles.
func (a *app) list(titles ...string) *listing { return &listing{a: a, rows: [][]string{titles}} }

// add adds an item: item is printed with --json, row without.
func (l *listing) add(item any, row ...string) {
	if l.a.json && l.failed == nil {
		l.failed = l.a.printLine(item)
	} else if !l.a.json {
		l.rows = append(l.rows, row)
	}
}

// end prints the table, or the text none if the listing is empty.
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

// more prints a text about items that were not listed: with --json as a note, else after the table. "" prints
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
