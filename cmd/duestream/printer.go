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
	_ = root.RegisterFlagCompletionFunc("color", cobra.FixedCompletions(term.ColorModes, cobra.ShellCompDirectiveNoFileComp))
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

// note prints a line about what is going on, which is no result: on standard error, with --json as {"note":"…"}.
func (a *app) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !a.json {
		fmt.Fprintln(a.err, text)
		return
	}
	line, err := plainJSON(struct {
		Note string `json:"note"`
	}{text})
	if err != nil {
		panic(err) // a string always encodes
	}
	_, _ = a.err.Write(line)
}

// reported is an error as JSON.
type reported struct {
	Error string `json:"error"`
	Code  int    `json:"code"`
	Hint  string `json:"hint,omitempty"`
}

func (a *app) reportJSON(r reported) {
	_ = json.NewEncoder(a.err).Encode(r)
}

// print writes value as JSON, or calls text, as --json asks for. JSON has one shape in all commands: one object per line. A list is a line
// for each of its items, and none when it is empty.
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

// printLine writes value as one line of JSON.
func (a *app) printLine(value any) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	return enc.Encode(value)
}
