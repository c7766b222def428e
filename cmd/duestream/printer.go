package main

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// printer prints the results of one run of the command.
type printer struct {
	out, err io.Writer
	json     bool // print JSON for programs (--json)
	color    term.ColorMode
}

// colorFlag adds --color to the root command.
func (a *app) colorFlag(root *cobra.Command) {
	a.color = "auto"
	root.PersistentFlags().Var(&a.color, "color", "auto, always or never; auto: on a terminal, unless NO_COLOR is set or TERM is dumb")
	offerValues(root, "color", term.ColorModes...)
}

// paint returns the colours for standard output or standard error.
func (o *printer) paint(stream any) term.Paint { return o.color.Paint(stream) }

// table prints rows in columns. The first row is the header. Cells must not hold tabs.
func (o *printer) table(rows [][]string) { o.paint(o.out).Table(o.out, rows) }

// warning prints a line about something that looks wrong.
func (o *printer) warning(format string, args ...any) {
	fmt.Fprintln(o.out, o.paint(o.out).Text(term.Alert, "! "+fmt.Sprintf(format, args...)))
}

// outlet returns the outlet to standard output or standard error.
func (o *printer) outlet(raw io.Writer) *term.Outlet {
	return term.NewOutlet(raw, func() bool { return o.json }, func() term.Paint { return o.paint(raw) })
}

// note prints a remark to standard error; with --json as {"note":"…"}.
func (o *printer) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !o.json {
		fmt.Fprintln(o.err, text)
		return
	}
	_ = encoder(o.err).Encode(struct {
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
func (o *printer) print(value any, text func()) error {
	if !o.json {
		text()
		return nil
	}
	if list := reflect.ValueOf(value); list.Kind() == reflect.Slice {
		for i := range list.Len() {
			if err := o.printLine(list.Index(i).Interface()); err != nil {
				return err
			}
		}
		return nil
	}
	return o.printLine(value)
}

// done returns what for a change that was made, and "would be " and what for a dry run.
func done(what string, dryRun bool) string {
	if dryRun {
		return "would be " + what
	}
	return what
}

// text returns the writer for output for people. With --json it discards.
func (o *printer) text() io.Writer {
	if o.json {
		return io.Discard
	}
	return o.out
}

// listing prints items: with --json one line at once for each, else a table at the end.
type listing struct {
	o      *printer
	rows   [][]string
	failed error // why an item could not be written
}

// list begins a listing with the given column titles.
func (o *printer) list(titles ...string) *listing { return &listing{o: o, rows: [][]string{titles}} }

// add adds an item: item is printed with --json, row without.
func (l *listing) add(item any, row ...string) {
	if l.o.json && l.failed == nil {
		l.failed = l.o.printLine(item)
	} else if !l.o.json {
		l.rows = append(l.rows, row)
	}
}

// end prints the table, or the text none if the listing is empty.
func (l *listing) end(none string) error {
	switch {
	case l.o.json:
		return l.failed
	case len(l.rows) == 1:
		fmt.Fprintln(l.o.out, none)
	default:
		term.Table(l.o.out, l.rows)
	}
	return nil
}

// more prints a text about items that were not listed: with --json as a note, else after the table. "" prints
// nothing.
func (o *printer) more(text string) {
	switch {
	case text == "":
	case o.json:
		o.note("%s", text)
	default:
		fmt.Fprintln(o.out, text)
	}
}

// printLine writes value as one line of JSON.
func (o *printer) printLine(value any) error { return encoder(o.out).Encode(value) }
