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
	kindHang = 'u' // n attempts; the handler of a Go worker outlasts its limit, and every second one its context as well
	kindHalt = 'n' // cancelled by its producer wherever it is, also while a handler runs
)

const (
	hangLimit    = 300 * time.Millisecond // of kindHang, as its message says
	abandonAfter = 500 * time.Millisecond // of all Go workers
	hangFor      = 4 * time.Second        // well beyond both
	haltTakes    = 3                      // a handler of kindHalt takes so many times as long as one that takes a while
)

// endless says whether messages whose handlers do not end by themselves take part: workers of the release before do not
// know them, and metrics count them otherwise than ledgers do.
func (c *controller) endless() bool { return !c.cfg.Releases && !c.cfg.Metrics }

func isEndless(kind byte) bool { return kind == kindHang || kind == kindHalt }

// draw is the plan of a producer's next message.
func (p part) draw(random *rand.Rand) plan {
	drawn := draw(random, p.Patience)
	if !p.Endless && isEndless(drawn.kind) {
		drawn.kind, drawn.n = kindOK, 0
	}
	return drawn
}

// hang is a handler whose time ends before it does. It says so before: who abandons it does not wait.
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
		return nil // nobody is to take this for a success
	case <-stop:
		return context.Cause(ctx)
	}
}

// halt cancels a message, whoever has it.
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

// CancelRunning cancels one message wherever it is.
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

// halts finds what began after its message was cancelled: what nobody held must not begin, and what somebody held not
// anew. A master that was replaced meanwhile may have given it out.
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
