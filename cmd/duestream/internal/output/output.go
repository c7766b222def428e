// Package output prints the results of a command: tables and texts for people, one JSON object a line for programs.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"

	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// Output prints the results of one run of the command.
type Output struct {
	Out, Err io.Writer
	JSON     bool // print JSON for programs (--json)
	Color    term.ColorMode
}

// Paint returns the colours for standard output or standard error.
func (o *Output) Paint(stream any) term.Paint { return o.Color.Paint(stream) }

// Table prints rows in columns. The first row is the header. Cells must not hold tabs.
func (o *Output) Table(rows [][]string) { o.Paint(o.Out).Table(o.Out, rows) }

// Warning prints a line about something that looks wrong.
func (o *Output) Warning(format string, args ...any) {
	fmt.Fprintln(o.Out, o.Paint(o.Out).Text(term.Alert, "! "+fmt.Sprintf(format, args...)))
}

// Outlet returns the outlet to standard output or standard error.
func (o *Output) Outlet(raw io.Writer) *term.Outlet {
	return term.NewOutlet(raw, func() bool { return o.JSON }, func() term.Paint { return o.Paint(raw) })
}

// Note prints a remark to standard error; with --json as {"note":"…"}.
func (o *Output) Note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !o.JSON {
		fmt.Fprintln(o.Err, text)
		return
	}
	_ = Encoder(o.Err).Encode(struct {
		Note string `json:"note"`
	}{text})
}

// Encoder returns an encoder that does not escape for HTML.
func Encoder(w io.Writer) *json.Encoder {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc
}

// Print prints value as JSON with --json, and otherwise calls printText. JSON is always one object per line. A list is
// one line for each item, and no line if it is empty.
func (o *Output) Print(value any, printText func()) error {
	if !o.JSON {
		printText()
		return nil
	}
	if list := reflect.ValueOf(value); list.Kind() == reflect.Slice {
		for i := range list.Len() {
			if err := o.PrintLine(list.Index(i).Interface()); err != nil {
				return err
			}
		}
		return nil
	}
	return o.PrintLine(value)
}

// Done returns the participle for a change that was made, and "would be " and the participle for a dry run.
func Done(participle string, dryRun bool) string {
	if dryRun {
		return "would be " + participle
	}
	return participle
}

// Change returns the word for a change to something that may have existed already.
func Change(added, changed bool) string {
	switch {
	case added:
		return "added"
	case changed:
		return "changed"
	}
	return "unchanged"
}

// Text returns the writer for texts for people. With --json the writer discards them.
func (o *Output) Text() io.Writer {
	if o.JSON {
		return io.Discard
	}
	return o.Out
}

// More prints a text about items that were not listed: with --json as a note, otherwise on standard output. It prints
// nothing if the text is empty.
func (o *Output) More(text string) {
	switch {
	case text == "":
	case o.JSON:
		o.Note("%s", text)
	default:
		fmt.Fprintln(o.Out, text)
	}
}

// PrintLine writes value as one line of JSON.
func (o *Output) PrintLine(value any) error { return Encoder(o.Out).Encode(value) }
