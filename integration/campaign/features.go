package campaign

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Kinds of messages that use special features. n is drawn for each message; see plan.
const (
	kindSnooze  = 'z' // a Go worker snoozes it n times, then acknowledges it
	kindGaps    = 'y' // fails n times, with retry delays of its own
	kindAge     = 'q' // always fails, and is tried for a limited time
	kindCrash   = 'k' // see plan.featured: group a handles it, in group b it dies after n crashes of plain workers
	kindVersion = 'v' // replaced by newer versions n-1 times
	kindSweep   = 'b' // cancelled by an operator in bulk
	kindShift   = 't' // moved by an operator in bulk
	kindSpread  = 'i' // spread over a second
	kindKeyed   = 'j' // has a key, and fails n-1 times
)

// gaps are the retry delays of kindGaps.
var gaps = []time.Duration{200 * time.Millisecond, 600 * time.Millisecond, time.Second}

// Settings of messages of these kinds.
const (
	snoozeFor = 300 * time.Millisecond // length of a snooze, of all kinds
	patient   = 12                     // a Go worker snoozes a message of kindCrash so often, and then acknowledges it
	oldest    = 2 * time.Second        // time limit of kindAge
	ageGap    = 400 * time.Millisecond // delay between the attempts of kindAge
	spread    = time.Second            // of kindSpread
	keys      = 400                    // number of keys; a plain worker blocks one for a second or two

	headerBulk  = "bulk" // header that selects messages for the operator
	bulkCancels = "cancel"
	bulkMoves   = "move"
)

// featureKinds are drawn beside the other kinds. Each has a kind, its weight in thousandths of all messages, and the
// largest n.
var featureKinds = []weighted{
	{kindSnooze, 20, 3}, {kindGaps, 20, 3}, {kindAge, 6, 0}, {kindCrash, 10, 1}, {kindVersion, 20, 3}, {kindSweep, 15, 0},
	{kindShift, 15, 0}, {kindSpread, 20, 0}, {kindKeyed, 20, 2}, {kindHang, 6, 2}, {kindHalt, 20, 0},
}

var featureNames = map[byte]string{
	kindSnooze: "snoozed", kindGaps: "delays of its own", kindAge: "tried for a time", kindCrash: "crashes",
	kindVersion: "replaced", kindSweep: "cancelled in bulk", kindShift: "moved in bulk", kindSpread: "spread",
	kindKeyed: "one at a time per key", kindHang: "hung", kindHalt: "cancelled while it runs",
}

// mainPolicy returns the policy of the main queue. It turns the history on, because a fault in the history must not
// lose a message either.
func mainPolicy() admin.PolicyUpdate {
	const historyLength = 100_000 // entries
	return admin.PolicyUpdate{History: new(historyLength)}
}

// features sets the fields of a message that its kind needs. random varies the delays.
func (p plan) features(random *rand.Rand, m *bridge.NewMessage) {
	switch p.kind {
	case kindGaps:
		m.RetryDelays = bridge.NewDelays(gaps...)
	case kindAge:
		m.RetryFor, m.RetryDelays = oldest, bridge.NewDelays(ageGap)
	case kindCrash:
		m.MaxCrashes = p.n
	case kindVersion:
		m.Delay = time.Second + time.Duration(random.IntN(2000))*time.Millisecond
		m.Payload = version(1)
	case kindSweep, kindShift:
		m.Delay = 2*time.Second + time.Duration(random.IntN(3000))*time.Millisecond
		m.Headers = map[string]string{headerBulk: bulkCancels}
		if p.kind == kindShift {
			m.Headers[headerBulk] = bulkMoves
		}
	case kindSpread:
		m.Spread = spread
	case kindKeyed:
		m.Key = keyOf(m.ID)
	case kindHang:
		m.HandlerTimeout = hangLimit
	}
}

// keyOf returns the key of a message of kindKeyed.
func keyOf(id string) string { return fmt.Sprint("key-", hash(id)%keys) }

// featured returns how a handler of a message of one of these kinds ends (endOK and so on). plain is set for a plain
// worker, and for a worker over HTTP, which does not know how often a message was snoozed.
func (p plan) featured(m *bridge.Message, plain bool) (end string) {
	snoozes, _ := strconv.Atoi(m.Extra[lua.FieldSnoozes])
	switch p.kind {
	case kindSnooze:
		if snoozes < p.n && !plain {
			return endSnooze
		}
	case kindGaps:
		if m.Attempt <= p.n {
			return endFail
		}
	case kindAge:
		return endFail
	case kindKeyed:
		if m.Attempt < p.n {
			return endFail
		}
	case kindHang: // a Go worker calls part.hang instead
		return endFail
	case kindCrash:
		// Group a acknowledges it at once. In group b, plain workers crash on it. Go workers snooze it a limited
		// number of times, so that a plain worker may get it, and then acknowledge it.
		switch {
		case m.Group == groups[0]:
		case plain:
			return endAbandon
		case snoozes < patient:
			return endSnooze
		}
	}
	return endOK
}

func (p plan) featuredByGo(m *bridge.Message) string { return p.featured(m, false) }

// In ledgers, a version of a message is a message of its own: <ID>!<n>. The payload holds its number.
func version(n int) []byte { return fmt.Appendf(nil, "%d;", n) }

func versionID(id string, n int) string { return fmt.Sprint(id, "!", n) }

// bookedAs returns the name of a message in ledgers.
func bookedAs(id string, payload []byte) string {
	if p, ok := planOf(id); !ok || p.kind != kindVersion {
		return id
	}
	n, _, _ := strings.Cut(string(payload), ";")
	return id + "!" + n
}

// replace sends versions 2 to last of a message, one after another. The pause before a version and the delay of the
// previous one are both random, of up to 1.5 s and 1.8 s, so the previous version may or may not be due by then. due is
// the due time of version 1.
func (p *producer) replace(queue, id string, due time.Time, last int, random *rand.Rand) {
	drawn := make([]time.Duration, last+1) // here, because random is not safe for concurrent use
	for i := range drawn {
		drawn[i] = time.Duration(random.IntN(1500)) * time.Millisecond
	}
	p.later.Go(func() {
		for n := 2; n <= last; n++ {
			<-time.After(drawn[n])
			before, delay := versionID(id, n-1), 300*time.Millisecond+drawn[n-1]
			p.ledger.must(line{verbReplace, before, []any{changeAsked}},
				line{verbTry, versionID(id, n), []any{delay.Milliseconds()}})
			receipt, err := p.client.Schedule(context.Background(), queue, version(n), bridge.WithID(id), bridge.In(delay),
				bridge.Replace)
			answer := verdict(versionID(id, n), receipt, err)
			previousNotDue := time.Now().Before(due) // so the previous version cannot have been delivered
			replaced := changeMaybe
			switch {
			case answer.verb == verbTaken && (receipt.Replaced || previousNotDue):
				replaced = changeOK
			case answer.verb == verbRefuse:
				replaced = changeNo
			}
			p.ledger.must(answer, line{verbReplace, before, []any{replaced}})
			if answer.verb != verbTaken {
				return
			}
			due = receipt.Due
		}
	})
}

// operate cancels and moves messages of the main queue in bulk, selected by headers, until ctx ends.
func (p part) operate(ctx context.Context, r *bridge.Redis, l *ledger) error {
	random := rand.New(rand.NewPCG(p.Seed, 7)) // 7 is arbitrary
	for pause(ctx, time.Second+time.Duration(random.IntN(1500))*time.Millisecond) {
		p.sweep(r, l, random)
		if !pause(ctx, time.Second) {
			return nil
		}
		p.shift(r, l, random)
	}
	return nil
}

// bulkRun records one bulk change in the ledger: the selected messages before it, and their results after it.
type bulkRun struct {
	l        *ledger
	verb     string          // verbCancel or verbMove
	missed   map[string]bool // IDs of messages that were gone, or whose change was refused
	selected []string        // IDs
}

// record returns options with the callbacks that record the selected and the missed messages.
func (b *bulkRun) record(o admin.BulkOptions) admin.BulkOptions {
	b.missed = map[string]bool{}
	o.Selected = func(m admin.BulkMessage) {
		b.selected = append(b.selected, m.ID)
		b.l.must(b.line(m.ID, changeAsked, 0))
	}
	o.Missed = func(m admin.BulkMessage) { b.missed[m.ID] = true }
	return o
}

// line returns the line of a result, a word such as changeOK. due is in Unix ms, and for verbMove only.
func (b *bulkRun) line(id, result string, due int64) line {
	if b.verb == verbMove {
		return line{b.verb, id, []any{result, due}}
	}
	return line{b.verb, id, []any{result}}
}

// end records the results of the selected messages. err is the error of the bulk change.
func (b *bulkRun) end(err error, due func(id string) int64) {
	lines := make([]line, len(b.selected))
	for i, id := range b.selected {
		switch {
		case b.missed[id]:
			lines[i] = b.line(id, changeNo, 0)
		case err != nil:
			lines[i] = b.line(id, changeMaybe, 0)
		default:
			lines[i] = b.line(id, changeOK, due(id))
		}
	}
	b.l.must(lines...)
}

// bulkWait is the time limit of a bulk change. With a large backlog and a rate it would take minutes, and a process
// that is told to stop has half a minute.
const bulkWait = 15 * time.Second

// sweep cancels the scheduled messages of kindSweep, either without a limit or with 100 or 200 a second.
func (p part) sweep(r *bridge.Redis, l *ledger, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), bulkWait)
	defer cancel()
	b := &bulkRun{l: l, verb: verbCancel}
	_, err := redistest.Must(admin.New(r, p.Prefix)).Bulk().Cancel(ctx, queueMain,
		admin.BulkFilter{Headers: map[string]string{headerBulk: bulkCancels}},
		b.record(admin.BulkOptions{Rate: float64(100 * random.IntN(3))}))
	b.end(err, func(string) int64 { return 0 })
}

// shift moves the scheduled messages of kindShift to a time in one second, with a spread of up to 400 ms.
func (p part) shift(r *bridge.Redis, l *ledger, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), bulkWait)
	defer cancel()
	b := &bulkRun{l: l, verb: verbMove}
	most := time.Duration(random.IntN(3)) * 200 * time.Millisecond
	result, err := redistest.Must(admin.New(r, p.Prefix)).Bulk().Reschedule(ctx, queueMain,
		admin.BulkFilter{Headers: map[string]string{headerBulk: bulkMoves}}, time.Second, time.Time{},
		b.record(admin.BulkOptions{Spread: most}))
	b.end(err, func(id string) int64 { return result.To.Add(lua.SpreadOf(id, most)).UnixMilli() })
}

// recurrencesBook is the ledger of occurrences. It is written after the run.
const recurrencesBook = "recurrences"

// recurring returns the recurrences of the main queue, from start to end. Their occurrences are audited as accepted
// messages.
func recurring(start, end time.Time) []bridge.Recurrence {
	all := []bridge.Recurrence{
		{Name: plan{queueMain, kindOK, 0}.id("every", 1), Every: time.Second},
		{Name: plan{queueMain, kindFail, 1}.id("phase", 2), Every: time.Second, Phase: 500 * time.Millisecond},
		{Name: plan{queueMain, kindFail, 2}.id("cron", 3), Cron: "* * * * * *", Zone: "America/Sao_Paulo"},
	}
	for i := range all {
		all[i].Queue, all[i].Start, all[i].End, all[i].Missed = queueMain, start, end, bridge.MissedAll
	}
	return all
}

// recur creates the recurrences, which end with the load. They start a quarter of a second after a whole second, so no
// occurrence falls on their start or end.
func (c *controller) recur(ctx context.Context, client *bridge.Client) error {
	start := time.Now().Add(2 * time.Second).Truncate(time.Second).Add(250 * time.Millisecond)
	c.recurring = recurring(start, start.Add(c.cfg.Duration.Truncate(time.Second)))
	for _, r := range c.recurring {
		if _, err := client.Recur(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// occurrences returns the times at which a recurrence must have occurred, by simple counting.
func occurrences(r bridge.Recurrence) (all []time.Time) {
	for at := r.Start.Truncate(time.Second).Add(r.Phase); !at.After(r.End); at = at.Add(time.Second) {
		if !at.Before(r.Start) {
			all = append(all, at)
		}
	}
	return all
}

// bookRecurrences records all expected occurrences as if each had been scheduled two seconds before it was due. So the
// auditor finds each missing, duplicated or unexpected one. bookRecurrences also removes the recurrences.
func (c *controller) bookRecurrences(ctx context.Context, client *bridge.Client, l *ledger) error {
	for _, r := range c.recurring {
		if err := client.RemoveRecurrence(ctx, queueMain, r.Name); err != nil {
			return err
		}
		for _, at := range occurrences(r) {
			id := r.ID(at)
			const delay = 2 * time.Second
			scheduled := at.Add(-delay).UnixMicro()
			if err := l.writeAt(scheduled, line{verbTry, id, []any{delay.Milliseconds()}},
				line{verbTaken, id, []any{at.UnixMilli()}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// endRecurrences waits until the recurrences have ended and all their occurrences are scheduled. Then it records the
// occurrences and removes the recurrences.
func (c *controller) endRecurrences() error {
	ctx := context.Background()
	r, err := bridge.Dial(ctx, c.server.URL())
	if err != nil {
		return err
	}
	defer r.Close()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	if err != nil {
		return err
	}
	defer client.Close()
	if err := c.await(c.cfg.Settle, func() (string, error) {
		all, err := client.Recurrences(ctx, queueMain)
		for _, one := range all {
			if n := len(occurrences(one.Spec)); one.Used < n || time.Now().Before(one.Spec.End) {
				return fmt.Sprintf("of %s %d of %d occurrences are planned", one.Spec.Name, one.Used, n), err
			}
		}
		return "", err
	}); err != nil {
		return err
	}
	l, err := openLedger(filepath.Join(c.cfg.Dir, recurrencesBook+".ledger"), recurrencesBook, roleProducer, "")
	if err != nil {
		return err
	}
	return c.bookRecurrences(ctx, client, l)
}

// queuesOf returns how the Go worker with an index serves both queues. It returns nil if a Worker of its own serves
// each queue. Otherwise it returns the queues of one Worker, which serves them by weight or, if strict, in this order.
func queuesOf(index int) (queues []bridge.WorkerQueue, strict bool) {
	both := []bridge.WorkerQueue{{Queue: queueMain, Weight: 3}, {Queue: queueSide, Weight: 1}}
	switch index % 3 {
	case 1:
		return both, false
	case 2:
		for i := range both {
			both[i].Weight = 0
		}
		return both, true
	}
	return nil, false
}

func isFeature(kind byte) bool {
	return slices.ContainsFunc(featureKinds, func(w weighted) bool { return w.kind == kind })
}
