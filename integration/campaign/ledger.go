package campaign

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A ledger holds the observations of one process, one per line, in order. It belongs to one start of one process, so
// a line that a kill cut short is the last one of its file. A line is
//
//	<Unix µs> <verb> <message ID> <arguments>
//
// and is written by one write(2), unbuffered, before the step that it announces, or after the step that it reports.
const (
	verbIs      = "is"      // first line: the writer's name in place of the message ID, its role, its group ("-" = none)
	verbStall   = "stall"   // the process did not run since that time, in Unix µs
	verbTry     = "try"     // delay in ms
	verbTaken   = "taken"   // due time in Unix ms
	verbDup     = "dup"     // refused as a duplicate
	verbRefuse  = "refused" // certainly refused
	verbMaybe   = "maybe"   // result unknown
	verbCancel  = "cancel"  // result of a cancel
	verbMove    = "move"    // result of a reschedule, and the new due time
	verbHalt    = "halt"    // result of a cancel in any state
	verbReplace = "over"    // result for a version that a newer one should replace
	verbStart   = "s"       // entry, attempt, the group that a retry is for ("-" = all groups), due
	verbEnd     = "e"       // entry, how the handler ended
	verbSettle  = "x"       // entry, settlement of the delivery
)

// Results of handlers, and of cancels and reschedules.
const (
	endOK      = "ok"
	endFail    = "fail"
	endDead    = "dead"
	endSnooze  = "snooze"
	endCut     = "cut"     // its context ended before it did
	endHang    = "hang"    // it exceeds its limit
	endAbandon = "abandon" // a plain worker that does not acknowledge

	changeAsked   = "asked"
	changeOK      = "ok"
	changeNo      = "no"
	changeRunning = "running" // it is cancelled while a worker holds it
	changeMaybe   = "maybe"
)

// record is a parsed line.
type record struct {
	at       int64 // Unix µs
	by       *writer
	verb     string
	id       string
	entry    string
	attempt  int
	forGroup string // value of the field "for": the group that a retry is for, "" = all groups
	due      int64  // Unix ms
	word     string // the text argument: a result, a settlement, or the delay of a try
}

// writer is one start of one process.
type writer struct{ name, role, group string }

// String formats the record for people.
func (r record) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %-12s %-7s", time.UnixMicro(r.at).UTC().Format("15:04:05.000000"), r.by.name, verbNames[r.verb])
	for _, part := range []struct{ name, value string }{
		{"entry", r.entry}, {"attempt", number(int64(r.attempt))}, {"for", r.forGroup}, {"due", clock(r.due)}, {"", r.word},
	} {
		if part.value != "" {
			b.WriteString(" " + strings.TrimSpace(part.name+" "+part.value))
		}
	}
	return b.String()
}

var verbNames = map[string]string{
	verbTry: "try", verbTaken: "taken", verbDup: "dup", verbRefuse: "refused", verbMaybe: "maybe", verbCancel: "cancel",
	verbMove: "move", verbReplace: "replaced", verbHalt: "halted",
	verbStart: "start", verbEnd: "end", verbSettle: "settled",
}

func number(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func clock(ms int64) string {
	if ms == 0 {
		return ""
	}
	return time.UnixMilli(ms).UTC().Format("15:04:05.000")
}

// parse parses a line without its line break. It returns false for an incomplete line.
func parse(line []byte, by *writer) (record, bool) {
	cells := strings.Split(string(line), " ")
	if len(cells) < 3 {
		return record{}, false
	}
	at, err := strconv.ParseInt(cells[0], 10, 64)
	r := record{at: at, by: by, verb: cells[1], id: cells[2]}
	args := cells[3:]
	want := map[string]int{
		verbTry: 1, verbTaken: 1, verbDup: 0, verbRefuse: 1, verbMaybe: 0, verbCancel: 1, verbMove: 2, verbStart: 4, verbEnd: 2,
		verbSettle: 2, verbReplace: 1, verbHalt: 1,
	}
	n, known := want[r.verb]
	if err != nil || !known || len(args) != n {
		return record{}, false
	}
	integer := func(s string) (n int64) {
		if n, e := strconv.ParseInt(s, 10, 64); e == nil {
			return n
		} else if err == nil {
			err = e
		}
		return n
	}
	switch r.verb {
	case verbTaken:
		r.due = integer(args[0])
	case verbTry, verbRefuse, verbCancel, verbReplace, verbHalt:
		r.word = args[0]
	case verbMove:
		r.word, r.due = args[0], integer(args[1])
	case verbStart:
		r.entry, r.attempt, r.due = args[0], int(integer(args[1])), integer(args[3])
		if args[2] != "-" {
			r.forGroup = args[2]
		}
	case verbEnd, verbSettle:
		r.entry, r.word = args[0], args[1]
	}
	return r, err == nil
}

// ledger is the file of one process. It is safe for concurrent use.
type ledger struct {
	mu   sync.Mutex
	file *os.File
	buf  []byte
}

func openLedger(path, name, role, group string) (*ledger, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	if group == "" {
		group = "-"
	}
	l := &ledger{file: file}
	return l, l.write(line{verbIs, name, []any{role, group}})
}

// line is a record to write. Its time is the time of the write.
type line struct {
	verb, id string
	args     []any
}

// write appends lines in one call. A process that cannot write must stop, because the audit would miss its actions.
func (l *ledger) write(lines ...line) error { return l.writeAt(0, lines...) }

// writeAt is write with an earlier time, in Unix µs; 0 = now.
func (l *ledger) writeAt(now int64, lines ...line) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now == 0 {
		now = time.Now().UnixMicro()
	}
	l.buf = l.buf[:0]
	for _, one := range lines {
		l.buf = strconv.AppendInt(l.buf, now, 10)
		l.buf = append(append(l.buf, ' '), one.verb...)
		l.buf = append(append(l.buf, ' '), one.id...)
		for _, arg := range one.args {
			l.buf = append(l.buf, ' ')
			l.buf = fmt.Append(l.buf, arg)
		}
		l.buf = append(l.buf, '\n')
	}
	_, err := l.file.Write(l.buf)
	return err
}

// must is write for processes that cannot report an error. It exits instead.
func (l *ledger) must(lines ...line) {
	if err := l.write(lines...); err != nil {
		fmt.Fprintln(os.Stderr, "campaign: cannot write the ledger:", err)
		os.Exit(3)
	}
}

// parseWriter reads the first line of a ledger.
func parseWriter(first []byte) (*writer, bool) {
	cells := bytes.Split(first, []byte(" "))
	if len(cells) != 5 || string(cells[1]) != verbIs {
		return nil, false
	}
	w := &writer{name: string(cells[2]), role: string(cells[3]), group: string(cells[4])}
	if w.group == "-" {
		w.group = ""
	}
	return w, true
}
