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

// keeper is a group that never acknowledges, so that the entries of what producers scheduled stay.
const keeper = "keeper"

// producer starts a producer.
func (t *trial) producer() (*program, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ctx.Err(); err != nil {
		return nil, err
	}
	environment, err := t.tapped("the producer")
	if err != nil {
		return nil, err
	}
	p, err := launch(t.cfg, "the producer", environment, true, func(line []byte) error {
		a, err := readAnswer(line)
		if err == nil {
			if t.untapped == "" {
				t.watch.answered(a)
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			t.answers = append(t.answers, a)
		}
		return err
	})
	if err == nil {
		t.programs = append(t.programs, p)
	}
	return p, err
}

// ready registers the queue, creates a group that keeps the entries, and starts a producer.
func (t *trial) ready() (*program, error) {
	if err := firstError(t.register(), t.createGroup(keeper)); err != nil {
		return nil, err
	}
	return t.producer()
}

// send writes lines to a producer.
func (t *trial) send(p *program, orders ...order) error {
	var text []byte
	for _, o := range orders {
		t.watch.ordered(o)
		line, err := json.Marshal(o)
		if err != nil {
			return err
		}
		text = append(append(text, line...), '\n')
	}
	if _, err := p.stdin.Write(text); err != nil {
		if err := t.trouble(); err != nil {
			return err
		}
		return failf("the producer does not read its input: %v", err)
	}
	return nil
}

// answered waits until there are so many answers, for each as long as the kit is patient, and returns them.
func (t *trial) answered(n int) (all []answer, err error) {
	for all = t.answersSoFar(); err == nil && len(all) < n; all = t.answersSoFar() {
		err = t.await(0, func() (string, error) {
			return missingIf(len(t.answersSoFar()) == len(all), fmt.Sprintf("%d answers of %d", len(all), n)), nil
		})
	}
	return all, err
}

func (t *trial) answersSoFar() []answer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.answers)
}

// taken sends orders and waits until all were answered ok.
func (t *trial) taken(p *program, orders ...order) error {
	t.mu.Lock()
	before := len(t.answers)
	t.mu.Unlock()
	if err := t.send(p, orders...); err != nil {
		return err
	}
	return t.allAnswered(before, orders)
}

// allAnswered waits until each of some orders was answered ok, once; so many answers came before.
func (t *trial) allAnswered(before int, orders []order) error {
	answers, err := t.answered(before + len(orders))
	if err != nil {
		return err
	}
	open := map[string]bool{}
	for _, o := range orders {
		open[o.ID] = true
	}
	for _, a := range answers[before:] {
		if !open[a.ID] {
			return failf("there is an answer for %q, which was not asked for, or a second one", a.ID)
		}
		if !a.OK {
			return failf("message %q was answered with ok: false, error %q", a.ID, a.Error)
		}
		delete(open, a.ID)
	}
	return nil
}

// finished ends the input of a producer and waits until it has ended well.
func (t *trial) finished(p *program) error {
	p.expectEnd()
	_ = p.stdin.Close()
	for p.running() {
		before := len(t.answersSoFar()) // each answer that is still to come is waited for anew
		if err := t.await(0, func() (string, error) {
			return missingIf(p.running() && len(t.answersSoFar()) == before, "the producer did not end after its input had"), nil
		}); err != nil {
			return err
		}
	}
	if state := p.cmd.ProcessState; state.ExitCode() != 0 {
		return failf("the producer ended with %s after its input had; wanted exit status 0", state)
	}
	return nil
}

// dueIn returns an order that is due so long after now, by the server's clock.
func (t *trial) dueIn(id string, d time.Duration) (order, error) {
	now, err := t.now()
	return order{ID: id, Due: now.Add(d).UnixMilli()}, err
}

// arrival waits until a message is in the stream, in whichever partition.
func (t *trial) arrival(id string, limit time.Duration) (found entry, err error) {
	err = t.await(limit, func() (string, error) {
		entries, err := t.kept(t.keys(0).Stream)
		if err != nil {
			return "", err
		}
		for _, e := range entries {
			if e.Fields[lua.FieldID] == id {
				found = e
				return "", nil
			}
		}
		return fmt.Sprintf("message %q is not in the stream", id), nil
	})
	return found, err
}

// allArrive sends orders, and checks each entry that comes.
func (t *trial) allArrive(orders []order, check ...func(entry, order) error) error {
	p, err := t.ready()
	if err != nil {
		return err
	}
	if err := t.taken(p, orders...); err != nil {
		return err
	}
	for _, o := range orders {
		e, err := t.arrival(o.ID, 0)
		if err != nil {
			return err
		}
		for _, look := range check {
			if err := look(e, o); err != nil {
				return err
			}
		}
	}
	return t.finished(p)
}

func samePayload(e entry, o order) error {
	if got, want := e.Fields[lua.FieldPayload], string(o.Payload); got != want {
		return failf("message %q: the payload that arrived has %d bytes, %s; it was sent with %d", o.ID, len(got), difference(got, want), len(want))
	}
	return nil
}

func sameHeaders(e entry, o order) error {
	headers := map[string]string{}
	for name, value := range e.Fields {
		if header, ok := strings.CutPrefix(name, lua.HeaderPrefix); ok {
			headers[header] = value
		}
	}
	if !maps.Equal(headers, o.Headers) {
		return failf("message %q: the headers that arrived are %q; it was sent with %q", o.ID, headers, o.Headers)
	}
	return nil
}

// inDueTime checks that an entry is a first attempt, of its due time, and was not early.
func inDueTime(e entry, o order) error {
	if got := e.Fields[lua.FieldAttempt]; got != "1" {
		return failf("message %q arrived with attempt %q; wanted 1", o.ID, got)
	}
	if got, want := e.Fields[lua.FieldDue], strconv.FormatInt(o.Due, 10); got != want {
		return failf("message %q arrived with due_ms %s; it was to be %s", o.ID, got, want)
	}
	if early := o.Due - e.ready().UnixMilli(); early > 0 {
		return failf("message %q became ready %d ms before its due time", o.ID, early)
	}
	return nil
}

// stored is a scheduled message as Redis holds it.
type stored struct {
	score         string
	payload, meta string
	hasPayload    bool
	fields        map[string]string // of meta
}

// scheduled returns a scheduled message; ok is false when it is not.
func (t *trial) scheduled(id string) (s stored, ok bool, err error) {
	k := t.keys(0)
	if s.score, ok, err = t.text("ZSCORE", k.Due, id); err != nil || !ok {
		return s, ok, err
	}
	if s.payload, s.hasPayload, err = t.text("HGET", k.Payload, id); err != nil {
		return s, ok, err
	}
	if s.meta, _, err = t.text("HGET", k.Meta, id); err != nil || s.meta == "" {
		return s, ok, err
	}
	if json.Unmarshal([]byte(s.meta), &s.fields) != nil {
		return s, ok, failf("the meta of %q is %s; wanted a JSON object whose values are all strings", id, s.meta)
	}
	return s, ok, nil
}

// mustBeScheduled is scheduled of a message that was answered ok and is due later.
func (t *trial) mustBeScheduled(id string) (stored, error) {
	s, ok, err := t.scheduled(id)
	if err == nil && !ok {
		err = failf("message %q was answered with ok, is due later, and is not scheduled", id)
	}
	return s, err
}
