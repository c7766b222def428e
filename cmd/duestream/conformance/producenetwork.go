package conformance

import (
	"fmt"
	"time"
)

const (
	stall      = 12 * time.Second // longer than most clients wait for a reply
	away       = 9 * time.Second  // the server is unreachable: a producer must retry for longer
	early      = time.Second      // how long the kit watches for an answer that is too early
	afterwards = 2                // replies that are lost, one after the other
)

// networkCases: the network of a producer breaks at a certain command.
var networkCases = []Case{
	{
		Name: "ok-when-stored", Level: Good, Section: "7 and 15", tapped: true,
		Rule: "A producer answers with ok when Redis has taken the message, not before.",
		run: func(t *trial) {
			p, net := t.warm()
			o := t.dueIn("held", far)
			o.Payload = []byte("body")
			release := make(chan struct{})
			defer func() { closeOnce(release) }()
			f := net.doom(holdCommand, 1, release, decides)
			t.send(p, o)
			t.hasMet(f)
			t.pause(early)
			if len(t.answersSoFar()) > 1 {
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
		Rule: "When the connection breaks before the server has the message, or half of it, a producer repeats all of it.",
		run: func(t *trial) {
			p, net := t.warm()
			for _, how := range []struct {
				id    string
				meant func(*tapped, *sent) bool
			}{{"at-the-end", decides}, {"in-the-middle", schedulesWhole}} {
				o := t.rich(how.id)
				f := net.doom(breakBefore, 1, nil, how.meant)
				during("its connection broke before the server had got all of the message", func() {
					t.taken(p, o)
					t.hasMet(f)
					t.holds(o)
				})
			}
			t.finished(p)
		},
	},
	{
		Name: "reply-lost", Level: Good, Section: "7 (IDs) and 15", tapped: true,
		Rule: "When the connection breaks before the reply has come, a producer repeats all of the message, and answers ok.",
		run: func(t *trial) {
			p, net := t.warm()
			o := t.rich("repeated")
			f := net.doom(breakBehind, afterwards, nil, decides)
			during("its connection broke when the server had taken the message, and before it said so", func() {
				t.taken(p, o)
				t.hasMet(f)
				t.holds(o)
			})
			t.finished(p)
		},
	},
	{
		Name: "late-reply", Level: Good, Section: "14 (Errors that pass)", tapped: true,
		Rule: "A client that has waited for a reply as long as it will closes the connection: what comes late there must not be taken for the answer to another message.",
		run: func(t *trial) {
			p, net := t.warm()
			slow := t.rich("slow")
			release := make(chan struct{})
			defer func() { closeOnce(release) }()
			f := net.doom(holdReply, 1, release, decides)
			t.send(p, slow)
			t.hasMet(f)
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
		run: func(t *trial) {
			const count = 4
			p, net := t.warm()
			moved := t.rich("order-45") // partition 1 of 4
			others := []order{moved, moved}
			others[0].ID, others[1].ID = "order-46", "order-47"
			f := net.doom(leaveBehind, 1, nil, decides)
			t.send(p, moved)
			t.hasMet(f)
			net.away(true)
			t.send(p, others...)
			t.grow(count)
			t.pause(away)
			net.away(false)
			for _, a := range t.answered(4) {
				if !a.OK {
					failf("message %q was answered with ok: false, error %q: the server was away for %s, and it was to be repeated for 10 s", a.ID, a.Error, away)
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
		Rule: "A call that is repeated because its reply was lost changes nothing: a message that was ready at once by then is delivered once, and one that is scheduled is not refused as its own duplicate.",
		run: func(t *trial) {
			p, net := t.warm()
			for _, in := range []time.Duration{-far, far} {
				o := t.rich(fmt.Sprintf("due-in-%s", in))
				o.Due = t.now().Add(in).UnixMilli()
				f := net.doom(breakBehind, afterwards, nil, decides)
				during("the reply was lost", func() {
					t.taken(p, o)
					t.hasMet(f)
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

// warm is like ready, but the producer has scheduled a first message: its scripts are loaded, and it knows the queue.
func (t *trial) warm() (*program, *tap) {
	p := t.ready()
	net := t.network()
	t.taken(p, t.dueIn("first", far))
	return p, net
}

// rich returns an order with payload, headers and max_attempts, due later than any case lasts.
func (t *trial) rich(id string) order {
	o := t.dueIn(id, far)
	o.Payload, o.Headers, o.MaxAttempts = []byte("body of "+id), map[string]string{"kind": "order"}, 5
	return o
}

func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// partitionOf returns the partition whose schedule holds a message, or -1.
func (t *trial) partitionOf(id string, count int) int {
	var found []int
	for i := range count {
		if _, ok := t.text("ZSCORE", t.keys(i).Due, id); ok {
			found = append(found, i)
		}
	}
	if len(found) > 1 {
		failf("message %q is in the partitions %v: it is delivered twice", id, found)
	}
	return append(found, -1)[0]
}

// whileBroken replaces a key of the queue by a string while do runs.
func (t *trial) whileBroken(kind string, do func()) {
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
