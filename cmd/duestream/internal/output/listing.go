package output

import (
	"fmt"

	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// listing prints items. With --json each item is one line at once. Otherwise the items are a table at the end.
type listing struct {
	o    *Output
	rows [][]string
	Err  error // why an item could not be written
}

// List begins a listing with the given column titles.
func (o *Output) List(titles ...string) *listing { return &listing{o: o, rows: [][]string{titles}} }

// Add adds an item. With --json it prints item, otherwise row becomes a row of the table.
func (l *listing) Add(item any, row ...string) {
	if l.o.JSON && l.Err == nil {
		l.Err = l.o.PrintLine(item)
	} else if !l.o.JSON {
		l.rows = append(l.rows, row)
	}
}

// Finish prints the table, or emptyText if there are no items. With --json it returns the error of Add.
func (l *listing) Finish(emptyText string) error {
	switch {
	case l.o.JSON:
		return l.Err
	case len(l.rows) == 1:
		fmt.Fprintln(l.o.Out, emptyText)
	default:
		term.Table(l.o.Out, l.rows)
	}
	return nil
}
