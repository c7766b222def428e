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
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
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

// relative says how far t is from now: "in 14m59s", "3s ago", "now".
func relative(t, now time.Time) string {
	d := t.Sub(now)
	switch text := short(max(d, -d)); {
	case text == "0s":
		return "now"
	case d > 0:
		return "in " + text
	default:
		return text + " ago"
	}
}

// short rounds a duration to what a person reads: 250ms, 14m59s, 15m, 26h3m, 12d4h.
func short(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d >= 2*day:
		d = d.Round(time.Hour)
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		d = d.Round(time.Minute)
	}
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// plainDuration writes a duration as a person would give it, exactly: 30s, 1h30m, 7d, 1d12h.
func plainDuration(d time.Duration) string {
	const day = 24 * time.Hour
	text := ""
	if d >= day {
		text, d = fmt.Sprintf("%dd", d/day), d%day
		if d == 0 {
			return text
		}
	}
	rest := d.String()
	if strings.HasSuffix(rest, "m0s") {
		rest = strings.TrimSuffix(rest, "0s")
	}
	if strings.HasSuffix(rest, "h0m") {
		rest = strings.TrimSuffix(rest, "0m")
	}
	return text + rest
}

// clock is a point in time for people: RFC 3339 in local time, and how far it is.
func clock(t, now time.Time) string {
	return t.Local().Format(time.RFC3339) + " (" + relative(t, now) + ")"
}

// timeRows returns table rows of named times, but not of those that are zero.
func timeRows(now time.Time, namesAndTimes ...any) (rows [][]string) {
	for i := 0; i < len(namesAndTimes); i += 2 {
		if t := namesAndTimes[i+1].(time.Time); !t.IsZero() {
			rows = append(rows, []string{namesAndTimes[i].(string), clock(t, now)})
		}
	}
	return rows
}

// mapRows returns table rows of a map, in the order of its keys.
func mapRows(what string, m map[string]string) (rows [][]string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		rows = append(rows, []string{what + oneLine(name, 40), oneLine(m[name], 200)})
	}
	return rows
}

// printable returns a payload as a terminal can show it: as it is, or quoted when it holds other bytes.
func printable(payload []byte) string {
	text := string(payload)
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }) {
		return text
	}
	return fmt.Sprintf("%q", text)
}

// oneLine returns a foreign text for a cell of a table: no control characters, at most n characters.
func oneLine(text string, n int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if r := []rune(text); len(r) > n {
		text = string(r[:n-1]) + "…"
	}
	return text
}

// orDash is what a table shows for an empty cell.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
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
