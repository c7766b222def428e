package campaign

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/duestream/duestream/bridge"
)

// Kinds of messages whose handlers do not end by themselves.
const (
	kindHang = 'u' // max_attempts n; its handler in a Go worker exceeds its limit, and one in two ignores its context
	kindHalt = 'n' // cancelled by its producer in any state, also while a handler runs
)

const (
	hangLimit    = 300 * time.Millisecond // handler timeout of a kindHang message
	abandonAfter = 500 * time.Millisecond // AbandonAfter of all Go workers
	hangFor      = 4 * time.Second        // well beyond hangLimit and abandonAfter
	haltTakes    = 3                      // duration of a kindHalt handler, as a multiple of that of a slow handler

	// haltRate is the number of messages per second of one producer up to which it sends its whole share of kindHalt. A
	// cancel in any state reads the whole stream and schedule. So its cost grows with the rate, and the number of such
	// cancels, too: the share falls with the square of the rate. Otherwise the server does little else.
	haltRate = 100
)

// endless reports whether messages whose handlers do not end by themselves take part. Workers of the previous release
// do not support them.
func (c *controller) endless() bool { return !c.cfg.Releases }

var errHung = errors.New("hung")

func isEndless(kind byte) bool { return kind == kindHang || kind == kindHalt }

// draw returns the plan of a producer's next message.
func (p part) draw(random *rand.Rand) plan {
	drawn := draw(random, p.Patience)
	haltShare := haltRate * haltRate / (p.Rate * p.Rate)
	tooManyHalts := drawn.kind == kindHalt && random.Float64() > haltShare
	if tooManyHalts || !p.Endless && isEndless(drawn.kind) {
		drawn.kind, drawn.n = kindOK, 0
	}
	return drawn
}

// hang is a handler that exceeds its limit. It records its end beforehand, because a worker that abandons it does not
// wait.
func (p part) hang(ctx context.Context, l *ledger, m *bridge.Message) error {
	l.must(line{verbEnd, bookedAs(m.ID, m.Payload), []any{m.EntryID, endHang}})
	stop := ctx.Done()
	if hash(m.ID)%2 == 0 {
		stop = nil
	}
	timer := time.NewTimer(hangFor)
	defer timer.Stop()
	select {
	case <-timer.C:
		// While a process is stopped, its timers stop, too. So this timer and the limit of the handler may end at the
		// same moment, and without an error the worker could take the handler for a success.
		return errHung
	case <-stop:
		return context.Cause(ctx)
	}
}

// halt cancels a message in any state.
func (p *producer) halt(queue, id string) {
	p.ledger.must(line{verbHalt, id, []any{changeAsked}})
	done, err := p.client.CancelRunning(context.Background(), queue, "", id)
	word := changeMaybe
	switch {
	case err != nil || len(done) != 1:
	case done[0].Verdict == bridge.VerdictCancelled:
		word = changeOK
	case done[0].Verdict == bridge.VerdictCancelling:
		word = changeRunning
	case done[0].Verdict == bridge.VerdictNotFound:
		word = changeNo
	}
	p.ledger.must(line{verbHalt, id, []any{word}})
}

// CancelRunning cancels one message in any state.
func (h *httpClient) CancelRunning(_ context.Context, queue, _ string, ids ...string) ([]bridge.Cancellation, error) {
	a, err := h.change(http.MethodDelete, queuePath(queue)+"/messages/"+ids[0]+"?running=true")
	if errors.Is(err, bridge.ErrNotScheduled) {
		return []bridge.Cancellation{{ID: ids[0], Verdict: bridge.VerdictNotFound}}, nil
	}
	if err != nil {
		return nil, err
	}
	var said struct{ Verdict bridge.CancelVerdict }
	err = json.Unmarshal(a.body, &said)
	return []bridge.Cancellation{{ID: ids[0], Verdict: said.Verdict}}, err
}

// halts finds handlers that started after the cancel of their message: any start if nobody held the message, and a
// start of a new delivery if somebody did. A master that was replaced meanwhile may have delivered it.
func (a *auditor) halts(p promise, c *chain, complain func(column, format string, args ...any)) {
	if p.halted == 0 {
		return
	}
	for _, d := range c.entries {
		for _, s := range d.starts {
			late := d.added() > p.halted || !p.wasHeld && s.at > p.halted
			if late && !a.explainer.undone(min(p.halted, s.at), s.at) {
				complain(columnCancelled, "entry %s was started at %s, and the message was cancelled everywhere at %s", d.entry,
					clock(s.at/1000), clock(p.halted/1000))
			}
		}
	}
}
