package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// colorMode is the flag --color.
type colorMode string

var colorModes = []string{"auto", "always", "never"}

func (m *colorMode) Set(text string) error {
	if !slices.Contains(colorModes, text) {
		return errors.New("must be auto, always or never")
	}
	*m = colorMode(text)
	return nil
}

func (m *colorMode) Type() string   { return "when" }
func (m *colorMode) String() string { return string(*m) }

func (a *app) colorFlag(root *cobra.Command) {
	a.color = "auto"
	root.PersistentFlags().Var(&a.color, "color", "auto, always or never; auto: on a terminal, unless NO_COLOR is set or TERM is dumb")
	_ = root.RegisterFlagCompletionFunc("color", cobra.FixedCompletions(colorModes, cobra.ShellCompDirectiveNoFileComp))
}

// paint colours texts; false leaves them as they are. What a colour says, the text says as well.
type paint bool

type style string

const (
	plain  style = ""
	strong style = "1"
	faint  style = "2"
	bad    style = "31"
	alert  style = "33"
)

func (p paint) text(s style, text string) string {
	if !p || s == plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// paint returns the colours for a stream: standard output or standard error.
func (a *app) paint(stream any) paint {
	switch a.color {
	case "always":
		return true
	case "never":
		return false
	}
	return paint(isTerminal(stream) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
}

// table writes rows in columns, the first one as their header. Cells must not hold tabs.
func (a *app) table(rows [][]string) { a.paint(a.out).table(a.out, rows) }

func (p paint) table(w io.Writer, rows [][]string) { p.tableUnder(w, 1, rows) }

// tableUnder is table with several lines of headers: rows that begin with a space belong to the last one, the others to the first.
func (p paint) tableUnder(w io.Writer, headers int, rows [][]string) {
	if !p || len(rows) == 0 {
		table(w, rows)
		return
	}
	widths := columnWidths(rows)
	for r, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			s := strong
			if r >= headers {
				header := rows[0]
				if strings.HasPrefix(row[0], " ") {
					header = rows[headers-1]
				}
				s = cellStyle(header[i], cell)
			}
			line.WriteString(p.text(s, cell))
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]+2-utf8.RuneCountInString(cell)))
			}
		}
		fmt.Fprintln(w, line.String())
	}
}

func columnWidths(rows [][]string) []int {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

// tableWidth is how wide a table becomes.
func tableWidth(rows [][]string) (width int) {
	for _, w := range columnWidths(rows) {
		width += w + 2
	}
	return width - 2
}

var someNumber = regexp.MustCompile(`^~?[0-9,]*[1-9][0-9,]*$`)

// cellStyle is what the columns of all tables have in common: dead letters are bad, and what is overdue needs a look.
func cellStyle(column, cell string) style {
	switch {
	case !someNumber.MatchString(cell):
		return plain
	case column == "DEAD":
		return bad
	case column == "OVERDUE":
		return alert
	}
	return plain
}

// warning writes a line about what looks wrong.
func (a *app) warning(format string, args ...any) {
	fmt.Fprintln(a.out, a.paint(a.out).text(alert, "! "+fmt.Sprintf(format, args...)))
}
