package campaign

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The auditor reads each kind of line as it was written.
func TestLedgerLinesAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "w.ledger")
	l, err := openLedger(path, "workera3.1", roleWorker, "a")
	if err != nil {
		t.Fatal(err)
	}
	before := time.Now().UnixMicro()
	if err := l.write(
		line{verbTry, "p-1-mo", []any{1500}}, line{verbTaken, "p-1-mo", []any{int64(1800000000000)}},
		line{verbDup, "p-1-mo", nil},
		line{verbRefuse, "p-1-mo", []any{"full"}}, line{verbMaybe, "p-1-mo", nil}, line{verbCancel, "p-1-mo", []any{changeNo}},
		line{verbMove, "p-1-mo", []any{changeOK, 1800000000001}}, line{verbStart, "p-1-mo", []any{"5-1", 3, "a", 1800000000002}},
		line{verbEnd, "p-1-mo", []any{"5-1", endFail}}, line{verbSettle, "p-1-mo", []any{"5-1", "retried"}},
	); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	by, ok := parseWriter(lines[0])
	if !ok || *by != (writer{"workera3.1", roleWorker, "a"}) {
		t.Fatalf("first line %q: %+v", lines[0], by)
	}
	want := []record{
		{verb: verbTry, word: "1500"}, {verb: verbTaken, due: 1800000000000}, {verb: verbDup}, {verb: verbRefuse, word: "full"},
		{verb: verbMaybe},
		{verb: verbCancel, word: changeNo}, {verb: verbMove, word: changeOK, due: 1800000000001},
		{verb: verbStart, entry: "5-1", attempt: 3, forGroup: "a", due: 1800000000002},
		{verb: verbEnd, entry: "5-1", word: endFail},
		{verb: verbSettle, entry: "5-1", word: "retried"},
	}
	if len(lines) != len(want)+1 {
		t.Fatalf("%d lines", len(lines))
	}
	for i, w := range want {
		got, ok := parse(lines[i+1], by)
		w.at, w.by, w.id = got.at, by, "p-1-mo"
		if !ok || got != w || got.at < before || got.at > time.Now().UnixMicro() {
			t.Errorf("%q read as %+v", lines[i+1], got)
		}
		if !strings.Contains(got.String(), "workera3.1") {
			t.Errorf("shown as %q", got)
		}
	}
}

// The plan of every message that a producer may draw is read back from its ID. It lets the message end: by the third
// attempt a handler succeeds, or the message must die. A plan that allowed neither would keep a campaign from coming to
// rest.
func TestPlansAreReadFromIDs(t *testing.T) {
	t.Parallel()
	const plainKinds = 12 // kinds that draw knows beside featureKinds
	random := rand.New(rand.NewPCG(1, 2))
	kinds := map[byte]int{}
	for i := range 20_000 {
		p := draw(random, 2)
		kinds[p.kind]++
		got, ok := planOf(p.id("producer-7.3", uint64(i)))
		if !ok || got != p {
			t.Fatalf("%+v is read as %+v", p, got)
		}
		if isFeature(p.kind) {
			continue
		}
		id := p.id("p", uint64(i))
		_, first, _ := p.handling(id, "a", 1, time.Second)
		_, later, _ := p.handling(id, "a", 3, time.Second)
		limited := p.kind == kindDoomed || p.kind == kindDying
		succeedsOrDies := (later == endOK) != p.dies()
		firstFailsIfItDies := !p.dies() || first != endOK
		if !succeedsOrDies || !firstFailsIfItDies || (p.maxAttempts() > 0) != limited {
			t.Fatalf("%+v ends %s, then %s", p, first, later)
		}
	}
	if len(kinds) != plainKinds+len(featureKinds) {
		t.Errorf("drawn: %v", kinds)
	}
	for _, id := range []string{"", "-", "p-1-m", "p-1-zo", "p-1-mfx", "order"} {
		if p, ok := planOf(id); ok {
			t.Errorf("%q is read as %+v", id, p)
		}
	}
}

// A confirmed move decides the due time, whether the operator hears of the move before or after the producer hears that
// its message was taken. The ledgers are sorted by time, so the records may come in either order.
func TestAMoveDecidesTheDueTimeEvenIfTheProducerHearsLate(t *testing.T) {
	t.Parallel()
	try, taken := record{verb: verbTry, at: 1}, record{verb: verbTaken, due: 14_920, at: 4, by: &writer{role: roleProducer}}
	asked := record{verb: verbMove, word: changeAsked, at: 2}
	for _, c := range []struct {
		name    string
		records []record
		want    int64
	}{
		{"moved", []record{try, asked, {verb: verbMove, word: changeOK, due: 11_397, at: 3}, taken}, 11_397},
		{"perhaps moved", []record{try, asked, {verb: verbMove, word: changeMaybe, at: 3}, taken}, 0},
		{"not moved", []record{try, asked, {verb: verbMove, word: changeNo, at: 3}, taken}, 14_920},
		{"moved after it was taken", []record{try, taken, asked, {verb: verbMove, word: changeOK, due: 11_397, at: 5}},
			11_397},
	} {
		if got := promiseOf(c.records); got.due != c.want || !got.taken {
			t.Errorf("%s: due %d, taken %v; want due %d", c.name, got.due, got.taken, c.want)
		}
	}
}
