package conformance

import (
	"fmt"
	"slices"
	"time"
)

const (
	stall      = 12 * time.Second // longer than clients wait for a reply, mostly
	away       = 9 * time.Second  // the server is, less than a producer repeats
	early      = time.Second      // in which no answer may come
	afterwards = 2                // replies that are lost in turn
)

// What producers do when the network breaks at a certain command.
var networkCases = []Case{
	{
		Name: "ok-when-stored", Level: Good, Section: "7 and 15", tapped: true,
		Rule: "A producer answers with ok when Redis has taken the message, not before.",
		run: func(t *trial) error {
			p, net, err := t.warm()
			if err != nil {
				return err
			}
			o, err := t.dueIn("held", far)
			if err != nil {
				return err
			}
			o.Payload = []byte("body")
			release := make(chan struct{})
			defer func() { closeOnce(release) }()
			f := net.doom(holdCommand, 1, release, decides)
			if err := firstError(t.send(p, o), t.hasMet(f), t.pause(early)); err != nil {
				return err
			}
			if len(t.answersSoFar()) > 1 {
				return failf("message %q was answered while the command that schedules it was still on its way to the server", o.ID)
			}
			closeOnce(release)
			if _, err := t.answered(2); err != nil {
				return err
			}
			return firstError(t.holds(o), t.finished(p))
		},
	},
	{
		Name: "request-lost", Level: Good, Section: "7 and 15", tapped: true,
		Rule: "When the connection breaks before the server has the message, or half of it, a producer repeats all of it.",
		run: func(t *trial) error {
			p, net, err := t.warm()
			if err != nil {
				return err
			}
			for _, how := range []struct {
				id    string
				meant func(*tapped, *sent) bool
			}{{"at-the-end", decides}, {"in-the-middle", schedulesWhole}} {
				o, err := t.rich(how.id)
				if err != nil {
					return err
				}
				f := net.doom(breakBefore, 1, nil, how.meant)
				if err := firstError(t.taken(p, o), t.hasMet(f), t.holds(o)); err != nil {
					return fmt.Errorf("its connection broke before the server had got all of the message: %w", err)
				}
			}
			return t.finished(p)
		},
	},
	{
		Name: "reply-lost", Level: Good, Section: "7 (IDs) and 15", tapped: true,
		Rule: "When the connection breaks before the reply has come, a producer repeats all of the message, and answers ok.",
		run: func(t *trial) error {
			p, net, err := t.warm()
			if err != nil {
				return err
			}
			o, err := t.rich("repeated")
			if err != nil {
				return err
			}
			f := net.doom(breakBehind, afterwards, nil, decides)
			if err := firstError(t.taken(p, o), t.hasMet(f), t.holds(o)); err != nil {
				return fmt.Errorf("its connection broke when the server had taken the message, and before it said so: %w", err)
			}
			return t.finished(p)
		},
	},
	{
		Name: "late-reply", Level: Good, Section: "14 (Errors that pass)", tapped: true,
		Rule: "A client that has waited for a reply as long as it will closes the connection: what comes late there must not be taken for the answer to another message.",
		run: func(t *trial) error {
			p, net, err := t.warm()
			if err != nil {
				return err
			}
			slow, err := t.rich("slow")
			if err != nil {
				return err
			}
			release := make(chan struct{})
			defer func() { closeOnce(release) }()
			f := net.doom(holdReply, 1, release, decides)
			if err := firstError(t.send(p, slow), t.hasMet(f)); err != nil {
				return err
			}
			for end := time.Now().Add(stall); len(t.answersSoFar()) < 2 && time.Now().Before(end); {
				if err := t.pause(lookEvery); err != nil {
					return err
				}
			}
			closeOnce(release)
			answers, err := t.answered(2)
			if err != nil {
				return err
			}
			if a := answers[1]; !a.OK {
				return failf("message %q, whose reply was late by %s, was answered with ok: false, error %q", slow.ID, stall, a.Error)
			}
			if err := t.holds(slow); err != nil {
				return err
			}
			return firstError(t.whileBroken("due", func() error {
				next := slow
				next.ID = "next"
				return t.refused(p, next, "the key of the schedule holds something else; the reply to the message before it was late")
			}), t.finished(p))
		},
	},
	{
		Name: "outage", Level: Good, Section: "7, 15 and 16", tapped: true,
		Rule: "A server that is away for 9 s, while the queue gets more partitions: each message is taken, and what is repeated goes into the partition of the first try.",
		run: func(t *trial) error {
			const count = 4
			p, net, err := t.warm()
			if err != nil {
				return err
			}
			moved, err := t.rich("order-45") // partition 1 of 4
			if err != nil {
				return err
			}
			others := []order{moved, moved}
			others[0].ID, others[1].ID = "order-46", "order-47"
			f := net.doom(leaveBehind, 1, nil, decides)
			if err := firstError(t.send(p, moved), t.hasMet(f)); err != nil {
				return err
			}
			net.away(true)
			if err := firstError(t.send(p, others...), t.grow(count), t.pause(away)); err != nil {
				return err
			}
			net.away(false)
			answers, err := t.answered(4)
			if err != nil {
				return err
			}
			for _, a := range answers {
				if !a.OK {
					return failf("message %q was answered with ok: false, error %q: the server was away for %s, and it was to be repeated for 10 s", a.ID, a.Error, away)
				}
			}
			at, err := t.partitionOf(moved.ID, count)
			if err != nil {
				return err
			}
			if at != 0 {
				return failf("message %q, which the server had taken into partition 0 before the reply was lost, is in partition %d", moved.ID, at)
			}
			for _, o := range others {
				if at, err := t.partitionOf(o.ID, count); err != nil || at < 0 {
					return firstError(err, failf("message %q was answered with ok and is in no partition", o.ID))
				}
			}
			return t.finished(p)
		},
	},
	{
		Name: "repeats-once", Level: Complete, Section: "15 and 17 (token)", tapped: true,
		Rule: "A call that is repeated because its reply was lost changes nothing: a message that was ready at once by then is delivered once, and one that is scheduled is not refused as its own duplicate.",
		run: func(t *trial) error {
			p, net, err := t.warm()
			if err != nil {
				return err
			}
			for _, in := range []time.Duration{-far, far} {
				o, err := t.rich(fmt.Sprintf("due-in-%s", in))
				if err != nil {
					return err
				}
				now, err := t.now()
				if err != nil {
					return err
				}
				o.Due = now.Add(in).UnixMilli()
				f := net.doom(breakBehind, afterwards, nil, decides)
				if err := firstError(t.taken(p, o), t.hasMet(f)); err != nil {
					return fmt.Errorf("the reply was lost: %w", err)
				}
				if in > 0 {
					if err := t.holds(o); err != nil {
						return err
					}
					continue
				}
				if _, err := t.arrival(o.ID, 0); err != nil {
					return err
				}
				marker, err := t.dueIn("marker", 0)
				if err != nil {
					return err
				}
				if err := t.taken(p, marker); err != nil {
					return err
				}
				if _, err := t.arrival(marker.ID, 0); err != nil {
					return err
				}
				if err := t.onlyOnce(o.ID); err != nil {
					return fmt.Errorf("the reply was lost, and the call was repeated: %w", err)
				}
			}
			return t.finished(p)
		},
	},
}

// warm is ready, with a first message taken: its scripts are loaded, and it knows the queue.
func (t *trial) warm() (*program, *tap, error) {
	p, err := t.ready()
	if err != nil {
		return nil, nil, err
	}
	net, err := t.network()
	if err != nil {
		return nil, nil, err
	}
	first, err := t.dueIn("first", far)
	if err != nil {
		return nil, nil, err
	}
	return p, net, t.taken(p, first)
}

// rich is an order with all there may be, due later than any case lasts.
func (t *trial) rich(id string) (order, error) {
	o, err := t.dueIn(id, far)
	o.Payload, o.Headers, o.MaxAttempts = []byte("body of "+id), map[string]string{"kind": "order"}, 5
	return o, err
}

func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// partitionOf returns the partition in whose schedule a message is, -1 when it is in none.
func (t *trial) partitionOf(id string, count int) (int, error) {
	var found []int
	for i := range count {
		_, ok, err := t.text("ZSCORE", t.keys(i).Due, id)
		if err != nil {
			return -1, err
		}
		if ok {
			found = append(found, i)
		}
	}
	switch len(found) {
	case 0:
		return -1, nil
	case 1:
		return found[0], nil
	}
	return -1, failf("message %q is in the partitions %v: it is delivered twice", id, slices.Clone(found))
}

// whileBroken has a key of the queue hold something else than it should while do runs.
func (t *trial) whileBroken(kind string, do func() error) error {
	k := t.keys(0)
	key := map[string]string{"due": k.Due, "meta": k.Meta}[kind]
	aside := key + "-aside"
	if there, err := t.number("EXISTS", key); err != nil {
		return err
	} else if there == 1 {
		if err := t.do("RENAME", key, aside).Error(); err != nil {
			return couldNot("RENAME", err)
		}
	}
	if err := t.do("SET", key, "broken by the kit").Error(); err != nil {
		return couldNot("SET", err)
	}
	failed := do()
	if _, err := t.number("DEL", key); err != nil {
		return firstError(failed, err)
	}
	if there, err := t.number("EXISTS", aside); err == nil && there == 1 {
		return firstError(failed, couldNot("RENAME", t.do("RENAME", aside, key).Error()))
	}
	return failed
}
