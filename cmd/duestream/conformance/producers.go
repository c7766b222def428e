package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

// keeper is a group that never acknowledges, so that the entries of delivered messages stay in the stream.
const keeper = "keeper"

// producer starts a producer.
func (t *producerTrial) producer() *program {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.start("the producer", nil, true, func(line []byte) error {
		a, err := readAnswer(line)
		if err == nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.answers = append(t.answers, a)
		}
		return err
	})
}

// ready registers the queue, creates a group that keeps the entries, and starts a producer.
func (t *producerTrial) ready() *program {
	t.register()
	t.createGroup(keeper)
	return t.producer()
}

// send writes orders to the input of a producer.
func (t *producerTrial) send(p *program, orders ...order) {
	var text []byte
	for _, o := range orders {
		line, err := json.Marshal(o)
		check(err)
		text = append(append(text, line...), '\n')
	}
	if _, err := p.stdin.Write(text); err != nil {
		check(t.trouble())
		failf("the producer does not read its input: %v", err)
	}
}

// answered waits until n answers have come, and returns all. The patience of the kit counts anew for each answer.
func (t *producerTrial) answered(n int) (all []answer) {
	for all = t.answersSoFar(); len(all) < n; all = t.answersSoFar() {
		t.await(0, func() string {
			return missingIf(len(t.answersSoFar()) == len(all), fmt.Sprintf("%d answers of %d", len(all), n))
		})
	}
	return all
}

func (t *producerTrial) answersSoFar() []answer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.answers)
}

// taken sends orders, and waits until all are answered with ok.
func (t *producerTrial) taken(p *program, orders ...order) {
	before := len(t.answersSoFar())
	t.send(p, orders...)
	t.allAnswered(before, orders)
}

// allAnswered waits until each order is answered with ok, once. before is the number of earlier answers.
func (t *producerTrial) allAnswered(before int, orders []order) {
	answers := t.answered(before + len(orders))
	open := map[string]bool{}
	for _, o := range orders {
		open[o.ID] = true
	}
	for _, a := range answers[before:] {
		if !open[a.ID] {
			failf("there is an answer for %q, which was not asked for, or a second one", a.ID)
		}
		if !a.OK {
			failf("message %q was answered with ok: false, error %q", a.ID, a.Error)
		}
		delete(open, a.ID)
	}
}

// finished ends the input of a producer, and waits until it exits with 0.
func (t *producerTrial) finished(p *program) {
	p.expectEnd()
	_ = p.stdin.Close()
	for p.running() {
		before := len(t.answersSoFar()) // the patience of the kit counts anew for each answer
		t.await(0, func() string {
			return missingIf(p.running() && len(t.answersSoFar()) == before, "the producer did not end after its input had")
		})
	}
	if state := p.cmd.ProcessState; state.ExitCode() != 0 {
		failf("the producer ended with %s after its input had; wanted exit status 0", state)
	}
}

// dueIn returns an order that is due d from now, by the clock of the server.
func (t *producerTrial) dueIn(id string, d time.Duration) order {
	return order{ID: id, Due: t.now().Add(d).UnixMilli()}
}

// delivered returns the entries of partition 0.
func (t *producerTrial) delivered() []entry { return t.kept(t.keys(0).Stream) }

// arrival waits until a message is in the stream of partition 0, and returns its entry.
func (t *producerTrial) arrival(id string, limit time.Duration) entry {
	isWanted := func(e entry) bool { return e.Fields[lua.FieldID] == id }
	return t.awaitEntry(limit, fmt.Sprintf("message %q is not in the stream", id), t.delivered, isWanted)
}

// allArrive sends orders, waits until each arrives, and checks its entry.
func (t *producerTrial) allArrive(orders []order, checks ...func(entry, order)) {
	p := t.ready()
	t.taken(p, orders...)
	for _, o := range orders {
		e := t.arrival(o.ID, 0)
		for _, look := range checks {
			look(e, o)
		}
	}
	t.finished(p)
}

// samePayload checks that an entry has the payload of its order.
func samePayload(e entry, o order) {
	if got, want := e.Fields[lua.FieldPayload], string(o.Payload); got != want {
		failf("message %q: the payload that arrived has %d bytes, %s; it was sent with %d", o.ID, len(got), difference(got, want), len(want))
	}
}

// sameHeaders checks that an entry has exactly the headers of its order.
func sameHeaders(e entry, o order) {
	headers := map[string]string{}
	for name, value := range e.Fields {
		if header, ok := strings.CutPrefix(name, lua.HeaderPrefix); ok {
			headers[header] = value
		}
	}
	if !maps.Equal(headers, o.Headers) {
		failf("message %q: the headers that arrived are %q; it was sent with %q", o.ID, headers, o.Headers)
	}
}

// inDueTime checks that an entry is a first attempt, has the right due time, and was not early.
func inDueTime(e entry, o order) {
	if got := e.Fields[lua.FieldAttempt]; got != "1" {
		failf("message %q arrived with attempt %q; wanted 1", o.ID, got)
	}
	if got, want := e.Fields[lua.FieldDue], strconv.FormatInt(o.Due, 10); got != want {
		failf("message %q arrived with due_ms %s; it was to be %s", o.ID, got, want)
	}
	if early := o.Due - e.ready().UnixMilli(); early > 0 {
		failf("message %q became ready %d ms before its due time", o.ID, early)
	}
}

// mustBeScheduled returns a message that was answered with ok and is due later. It fails if the message is not
// scheduled.
func (t *producerTrial) mustBeScheduled(id string) stored {
	s, ok := t.scheduled(id)
	if !ok {
		failf("message %q was answered with ok, is due later, and is not scheduled", id)
	}
	return s
}
