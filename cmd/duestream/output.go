package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

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

// table writes rows in columns. Cells must not hold tabs.
func table(w io.Writer, rows [][]string) {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	t.Flush()
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := fileOf(stream)
	return ok && term.IsTerminal(int(f.Fd()))
}

// timeRows returns table rows of named times, but not of those that are zero.
func timeRows(now time.Time, namesAndTimes ...any) (rows [][]string) {
	for i := 0; i < len(namesAndTimes); i += 2 {
		if t := namesAndTimes[i+1].(time.Time); !t.IsZero() {
			rows = append(rows, []string{namesAndTimes[i].(string), human.Clock(t, now)})
		}
	}
	return rows
}

// mapRows returns table rows of a map, in the order of its keys.
func mapRows(what string, m map[string]string) (rows [][]string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		rows = append(rows, []string{what + human.OneLine(name, 40), human.OneLine(m[name], 200)})
	}
	return rows
}

// lockedWriter lets several goroutines write whole lines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
