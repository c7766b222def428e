package redistest

import (
	"strings"
	"testing"
)

// Summary counts every kind of delivery, and Check fails exactly if a message is lost, early or unexpected. Arguments
// of Delivered are group, ID, time of the delivery and due time in the entry.
func TestLedgerAddsUp(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		do     func(l *Ledger)
		groups []string
		want   Result
		fails  bool
	}{
		{name: "nothing", do: func(*Ledger) {}},
		{name: "all delivered, one again", do: func(l *Ledger) {
			l.Delivered("g", "a", 101, 100) // recorded before it was sent
			l.Sent("a", 100)
			l.Sent("b", 100)
			l.Delivered("g", "b", 100, 100)
			l.Delivered("g", "b", 200, 200)
			l.Acknowledged("g", "b")
		}, want: Result{Sent: 2, Delivered: 2, Duplicated: 1, Acknowledged: 1}},
		{name: "lost in one of two groups", do: func(l *Ledger) {
			l.Sent("a", 1)
			l.Delivered("g", "a", 1, 1)
		}, groups: []string{"g", "h"}, want: Result{Sent: 1, Delivered: 1, Lost: 1}, fails: true},
		{name: "lost with no group at all", do: func(l *Ledger) { l.Sent("a", 1) }, want: Result{Sent: 1, Lost: 1}, fails: true},
		{name: "early by the entry", do: func(l *Ledger) {
			l.Sent("a", 100)
			l.Delivered("g", "a", 99, 100)
		}, want: Result{Sent: 1, Delivered: 1, Early: 1}, fails: true},
		{name: "early by what was sent, although the entry says otherwise", do: func(l *Ledger) {
			l.Sent("a", 100)
			l.Delivered("g", "a", 99, 50)
		}, want: Result{Sent: 1, Delivered: 1, Early: 1}, fails: true},
		{name: "a retry that came early", do: func(l *Ledger) {
			l.Sent("a", 100)
			l.Delivered("g", "a", 100, 100)
			l.Delivered("g", "a", 149, 150)
		}, want: Result{Sent: 1, Delivered: 1, Duplicated: 1, Early: 1}, fails: true},
		{name: "cancelled", do: func(l *Ledger) {
			l.Sent("a", 1)
			l.NotExpected("a")
		}},
		{name: "cancelled and delivered", do: func(l *Ledger) {
			l.Sent("a", 1)
			l.NotExpected("a")
			l.Delivered("g", "a", 1, 1)
		}, want: Result{Delivered: 1, Unexpected: 1}, fails: true},
		{name: "never sent", do: func(l *Ledger) { l.Delivered("g", "x", 1, 1) }, want: Result{Delivered: 1, Unexpected: 1},
			fails: true},
		{name: "perhaps sent", do: func(l *Ledger) {
			l.MaybeSent("a", 1)
			l.MaybeSent("b", 1)
			l.Delivered("g", "a", 1, 1)
		}, want: Result{Delivered: 1}},
		{name: "perhaps sent, then confirmed, then in doubt again", do: func(l *Ledger) {
			l.MaybeSent("a", 1)
			l.Sent("a", 1)
			l.MaybeSent("a", 1)
		}, want: Result{Sent: 1, Lost: 1}, fails: true},
		{name: "rescheduled", do: func(l *Ledger) {
			l.Sent("a", 100)
			l.Sent("a", 500)
			l.Delivered("g", "a", 100, 100)
		}, want: Result{Sent: 1, Delivered: 1, Early: 1}, fails: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var l Ledger
			tc.do(&l)
			if got := l.Summary(tc.groups...); got != tc.want {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
			var f fakeTB
			f.run(func(tb testing.TB) { l.Check(tb, tc.groups...) })
			if f.failed != tc.fails {
				t.Errorf("Check failed: %v, want %v\n%s", f.failed, tc.fails, f.log.String())
			}
			if line := tc.want.String(); !strings.Contains(f.log.String(), line) {
				t.Errorf("no line %q in\n%s", line, f.log.String())
			}
		})
	}
}
