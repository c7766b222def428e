package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// message is a message that the kit schedules for a worker.
type message struct {
	id          string
	work        string // task of the handler, in the form of the contract
	payload     string
	headers     map[string]string
	in          time.Duration
	maxAttempts int
	key         string
	partition   int
}

// allHeaders returns the headers of a message, with its work in the header work.
func (m message) allHeaders() map[string]string {
	all := map[string]string{}
	maps.Copy(all, m.headers)
	if m.work != "" {
		all["work"] = m.work
	}
	return all
}

// several returns n messages with the same work. Their IDs are prefix-01, prefix-02, and so on.
func several(n int, prefix, work string) []message {
	all := make([]message, n)
	for i := range all {
		all[i] = message{id: fmt.Sprintf("%s-%02d", prefix, i+1), work: work}
	}
	return all
}

func ids(messages []message) []string {
	var all []string
	for _, m := range messages {
		all = append(all, m.id)
	}
	return all
}

// worker starts a worker of the trial's group.
func (t *workerTrial) worker(name string) *program { return t.workerOf(t.group, name) }

// workerOf starts a worker of a group. name is its consumer name.
func (t *workerTrial) workerOf(group, name string) *program {
	t.mu.Lock()
	defer t.mu.Unlock()
	program := t.programName(name)
	return t.start(program, []string{"GROUP=" + group, "CONSUMER=" + name}, false, func(line []byte) error {
		b, err := readBegun(line)
		if err == nil {
			b.by = name
			t.mu.Lock()
			defer t.mu.Unlock()
			t.log = append(t.log, b)
		}
		return err
	})
}

// programName returns the name of a worker in reports. A worker that is started again under the same consumer name is
// another program. The caller holds t.mu.
func (t *workerTrial) programName(consumer string) string {
	name := "worker " + consumer
	for n := 2; slices.ContainsFunc(t.programs, func(p *program) bool { return p.name == name }); n++ {
		name = fmt.Sprintf("worker %s, started for the %d. time", consumer, n)
	}
	return name
}

// stop sends SIGTERM to a worker.
func (t *workerTrial) stop(w *program) {
	t.watch.stops(w.name)
	w.terminate()
}

// served registers the queue, starts a worker, and returns when the worker has done a first message.
func (t *workerTrial) served(name string) *program {
	t.register()
	w := t.worker(name)
	t.marker("first-of-" + name)
	return w
}

// marker schedules a message, and returns when a worker has done it. The worker has then received all earlier
// messages.
func (t *workerTrial) marker(id string) {
	t.schedule(message{id: id})
	t.done(0, id)
}

// begunOf returns the lines of workers that began a message, in order.
func (t *workerTrial) begunOf(id string) []begun {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []begun
	for _, b := range t.log {
		if b.ID == id {
			all = append(all, b)
		}
	}
	return all
}

// attempts returns the attempt numbers of lines.
func attempts(all []begun) []int {
	var numbers []int
	for _, b := range all {
		numbers = append(numbers, b.Attempt)
	}
	return numbers
}

// awaitBegun waits until a message was begun n times, and returns the n-th line.
func (t *workerTrial) awaitBegun(limit time.Duration, id string, n int) begun {
	t.await(limit, func() string {
		if all := t.begunOf(id); len(all) < n {
			return fmt.Sprintf("message %q was begun %s, with attempts %v", id, times(len(all)), attempts(all))
		}
		return ""
	})
	return t.begunOf(id)[n-1]
}

// awaitAnyBegun waits until any of the messages was begun. It returns the ID of the begun message that is last in the
// list.
func (t *workerTrial) awaitAnyBegun(messages []message) (id string) {
	t.await(0, func() string {
		for _, m := range messages {
			if len(t.begunOf(m.id)) > 0 {
				id = m.id
			}
		}
		return missingIf(id == "", "no message was begun")
	})
	return id
}

func times(n int) string {
	switch n {
	case 0:
		return "never"
	case 1:
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// done waits until all messages were begun, and nothing is left to be delivered or acknowledged.
func (t *workerTrial) done(limit time.Duration, ids ...string) {
	t.await(limit, func() string {
		for _, id := range ids {
			if len(t.begunOf(id)) == 0 {
				return fmt.Sprintf("message %q was not begun", id)
			}
		}
		return t.unsettled(t.group)
	})
}

// once checks that each message was begun exactly once, with attempt 1.
func (t *workerTrial) once(ids ...string) {
	for _, id := range ids {
		if got := attempts(t.begunOf(id)); !slices.Equal(got, []int{1}) {
			failf("message %q was begun %s, with attempts %v; wanted once, with attempt 1", id, times(len(got)), got)
		}
	}
}

// asSent checks that a worker received a message as it was sent.
func asSent(b begun, m message) {
	if !bytes.Equal(b.Payload, []byte(m.payload)) {
		failf("message %q: the payload has %d bytes, %s; it was sent with %d", b.ID, len(b.Payload), difference(string(b.Payload), m.payload), len(m.payload))
	}
	if want := m.allHeaders(); !maps.Equal(b.Headers, want) {
		failf("message %q: its headers are %q; it was sent with %q", b.ID, b.Headers, want)
	}
}

// difference says where two texts differ first, as a part of a sentence.
func difference(got, want string) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("and byte %d is %#02x where %#02x was sent", i, got[i], want[i])
		}
	}
	return "and is the same as far as it goes"
}

// exited waits until a worker that was told to stop has ended, and checks that it exited with 0.
func (t *workerTrial) exited(w *program, within time.Duration) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-w.proc.Done():
	case <-timer.C:
		failf("%s still runs %s after SIGTERM", w.name, within)
	}
	if state := w.cmd.ProcessState; state.ExitCode() != 0 {
		failf("%s, which was stopped by SIGTERM, ended with %s; wanted exit status 0", w.name, state)
	}
	<-w.proc.Done() // all its output was read
	check(t.watch.verdict())
	check(errors.Join(w.misprint(), w.ended()))
}
