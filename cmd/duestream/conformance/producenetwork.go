package conformance

import (
	"fmt"
	"time"
)

const (
	stall       = 12 * time.Second // longer than most clients wait for a reply
	away        = 9 * time.Second  // the server is unreachable: a producer must retry for longer
	early       = time.Second      // how long the kit waits for an answer that would be too early
	lostReplies = 2                // number of replies that are lost in a row
)

// networkCases: the network of a producer breaks at a certain command.
var networkCases = []Case{
	{
		Name: "ok-when-stored", Level: Good, Section: "7 and 15", tapped: true,
		Rule: "A producer answers with ok when Redis has taken the message, not before.",
		producer: func(t *producerTrial) {
			p, net := t.warm()
			o := t.dueIn("held", far)
			o.Payload = []byte("body")
			release := make(chan struct{})
			defer func() { closeOnce(release) }()
			f := net.inject(holdCommand, 1, release, storesMessage)
			t.send(p, o)
			t.awaitFault(f)
			t.pause(early)
			if len(t.answersSoFar()) > 1 { // the first answer is that of warm
				failf("message %q was answered while the command that schedules it was still on its way to the server", o.ID)
			}
			closeOnce(release)
			t.answered(2)
			t.holds(o)
			t.finished(p)
		},
	},
	{
		Name: "request-lost", Level: Good, Section: "7 and 15", tapped: true,
		Rule: "When the connection breaks before the server has the message, or when it has only half of it, " +
			"a producer repeats all of it.",
		producer: func(t *producerTrial) {
			p, net := t.warm()
			for _, how := range []struct {
				id      string
				matches func(*tapped, *sent) bool
			}{{"at-the-end", storesMessage}, {"in-the-middle", addsDueTime}} {
				o := t.rich(how.id)
				f := net.inject(breakBeforeCommand, 1, nil, how.matches)
				during("its connection broke before the server had got all of the message", func() {
					t.taken(p, o)
					t.awaitFault(f)
					t.holds(o)
				})
			}
			t.finished(p)
		},
	},
	{
		Name: "late-reply", Level: Good, Section: "14 (Errors that pass)", tapped: true,
		Rule: "A client closes the connection when its wait for a reply times out, so that a late reply is never taken " +
			"for the answer to another message.",
		producer: func(t *producerTrial) {
			p, net := t.warm()
			slow := t.rich("slow")
			release := make(chan struct{})
			defer func() { closeOnce(release) }()
			f := net.inject(holdReply, 1, release, storesMessage)
			t.send(p, slow)
			t.awaitFault(f)
			// An answer may come before the late reply, if the producer repeats the call.
			for end := time.Now().Add(stall); len(t.answersSoFar()) < 2 && time.Now().Before(end); {
				t.pause(lookEvery)
			}
			closeOnce(release)
			answers := t.answered(2)
			if a := answers[1]; !a.OK {
				failf("message %q, whose reply was late by %s, was answered with ok: false, error %q", slow.ID, stall, a.Error)
			}
			t.holds(slow)
			t.whileBroken("due", func() {
				next := slow
				next.ID = "next"
				t.refused(p, next, "the key of the schedule holds something else; the reply to the message before it was late")
			})
			t.finished(p)
		},
	},
	{
		Name: "outage", Level: Good, Section: "7, 15 and 16", tapped: true,
		Rule: "A server that is away for 9 s, while the queue gets more partitions: each message is taken, and what is repeated goes into the partition of the first try.",
		producer: func(t *producerTrial) {
			const count = 4
			p, net := t.warm()
			moved := t.rich("order-45") // partition 1 of 4
			others := []order{moved, moved}
			others[0].ID, others[1].ID = "order-46", "order-47"
			f := net.inject(cutBeforeReply, 1, nil, storesMessage)
			t.send(p, moved)
			t.awaitFault(f)
			net.away(true)
			t.send(p, others...)
			t.grow(count)
			t.pause(away)
			net.away(false)
			for _, a := range t.answered(4) { // those of warm, moved and others
				if !a.OK {
					failf("message %q was answered with ok: false, error %q: the server was away for %s, "+
						"and a producer must repeat a call for 10 s", a.ID, a.Error, away)
				}
			}
			if at := t.partitionOf(moved.ID, count); at != 0 {
				failf("message %q, which the server had taken into partition 0 before the reply was lost, is in partition %d", moved.ID, at)
			}
			for _, o := range others {
				if t.partitionOf(o.ID, count) < 0 {
					failf("message %q was answered with ok and is in no partition", o.ID)
				}
			}
			t.finished(p)
		},
	},
	{
		Name: "repeats-once", Level: Complete, Section: "15 and 17 (token)", tapped: true,
		Rule: "A call that is repeated because its reply was lost changes nothing: a message that had already " +
			"become ready is delivered only once, and one that is scheduled is not refused as its own duplicate.",
		producer: func(t *producerTrial) {
			p, net := t.warm()
			for _, in := range []time.Duration{-far, far} {
				o := t.rich(fmt.Sprintf("due-in-%s", in))
				o.Due = t.now().Add(in).UnixMilli()
				f := net.inject(breakBeforeReply, lostReplies, nil, storesMessage)
				during("the reply was lost", func() {
					t.taken(p, o)
					t.awaitFault(f)
				})
				if in > 0 {
					t.holds(o)
					continue
				}
				t.arrival(o.ID, 0)
				marker := t.dueIn("marker", 0)
				t.taken(p, marker)
				t.arrival(marker.ID, 0)
				during("the reply was lost, and the call was repeated", func() {
					t.onlyOnce(o.ID)
				})
			}
			t.finished(p)
		},
	},
}

// warm is like ready, but the producer has scheduled and answered a first message: its scripts are loaded, and it knows
// the queue.
func (t *producerTrial) warm() (*program, *tap) {
	p := t.ready()
	net := t.network()
	t.taken(p, t.dueIn("first", far))
	return p, net
}

// rich returns an order with payload, headers and max_attempts, due later than any case lasts.
func (t *producerTrial) rich(id string) order {
	o := t.dueIn(id, far)
	o.Payload, o.Headers, o.MaxAttempts = []byte("body of "+id), map[string]string{"kind": "order"}, 5
	return o
}

// closeOnce closes a channel that may be closed already.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// whileBroken replaces a key of the queue, "due" or "meta", by a string while do runs. Commands on the key then fail.
func (t *producerTrial) whileBroken(kind string, do func()) {
	k := t.keys(0)
	key := map[string]string{"due": k.Due, "meta": k.Meta}[kind]
	aside := key + "-aside"
	if t.number("EXISTS", key) == 1 {
		t.mustDo("RENAME", key, aside)
	}
	t.mustDo("SET", key, "broken by the kit")
	failed := attempt(do)
	restored := attempt(func() {
		t.number("DEL", key)
		if t.number("EXISTS", aside) == 1 {
			t.mustDo("RENAME", aside, key)
		}
	})
	check(failed)
	check(restored)
}
