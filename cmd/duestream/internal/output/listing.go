package output

import (
	"fmt"

	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// listing prints items: with --json one line at once for each, else a table at the end.
type listing struct {
	o      *Output
	rows   [][]string
	Failed error // why an item could not be written
}

// List begins a listing with the given column titles.
func (o *Output) List(titles ...string) *listing { return &listing{o: o, rows: [][]string{titles}} }

// Add adds an item: item is printed with --json, row without.
func (l *listing) Add(item any, row ...string) {
	if l.o.JSON && l.Failed == nil {
		l.Failed = l.o.PrintLine(item)
	} else if !l.o.JSON {
		l.rows = append(l.rows, row)
	}
}

// End prints the table, or the text none if the listing is empty.
func (l *listing) End(none string) error {
	switch {
	case l.o.JSON:
		return l.Failed
	case len(l.rows) == 1:
		fmt.Fprintln(l.o.Out, none)
	default:
		term.Table(l.o.Out, l.rows)
	}
	return nil
}
