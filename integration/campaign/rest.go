package campaign

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// streamState is the length of a stream, and the pending entries of each group.
type streamState struct {
	length int
	groups map[string]int
}

// main adds up the partitions of the main queue.
func (c *controller) main() (sum streamState, err error) {
	sum.groups = map[string]int{}
	for _, place := range c.places[:len(c.places)-1] { // the last place is the sacrificial queue
		s, e := c.stream(c.keys[place].Stream)
		err = errors.Join(err, e)
		sum.length += s.length
		for group, n := range s.groups {
			sum.groups[group] += n
		}
	}
	return sum, err
}

func (c *controller) stream(key string) (streamState, error) {
	s := streamState{groups: map[string]int{}}
	n, err := c.number("XLEN", key)
	if err != nil || n == 0 && !c.exists(key) {
		return s, err
	}
	s.length = n
	reply, err := c.do("XINFO", "GROUPS", key)
	if err != nil {
		return s, err
	}
	rows, err := reply.ToArray()
	if err != nil {
		return s, err
	}
	for _, row := range rows {
		fields, err := row.AsMap()
		if err != nil {
			return s, err
		}
		nameField, pendingField := fields["name"], fields["pending"]
		name, err1 := nameField.ToString()
		pending, err2 := pendingField.AsInt64()
		if err := errors.Join(err1, err2); err != nil {
			return s, err
		}
		s.groups[name] = int(pending)
	}
	return s, nil
}

func (c *controller) exists(key string) bool {
	n, err := c.number("EXISTS", key)
	return err == nil && n > 0
}

func (c *controller) number(args ...string) (int, error) {
	reply, err := c.do(args...)
	if err != nil {
		return 0, err
	}
	n, err := reply.AsInt64()
	return int(n), err
}

// await repeats ask until ask returns no reason to wait on (why). After the timeout, the last reason is the error.
func (c *controller) await(timeout time.Duration, ask func() (why string, err error)) error {
	for deadline := time.Now().Add(timeout); ; {
		why, err := ask()
		if err == nil && why == "" { // ask again, because a message may move between two reads of one ask
			why, err = ask()
		}
		switch {
		case err == nil && why == "":
			return nil
		case time.Now().After(deadline):
			return errors.Join(fmt.Errorf("after %s: %s", timeout, why), err)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// comeToRest ends the producers. It waits until everything except the holder's messages is done and freed, and then,
// after the holder released them, until nothing is left. Then it ends all processes, and reads the content of Redis.
func (c *controller) comeToRest() (State, error) {
	var state State
	if err := c.mend(); err != nil {
		return state, err
	}
	if err := endAll(c.family.of(roleProducer, roleOperator, roleHTTPProducer), producerTries+15*time.Second); err != nil {
		return state, err
	}
	if err := c.endRecurrences(); err != nil {
		return state, err
	}
	if err := c.await(c.cfg.Settle, func() (string, error) { return c.busy(c.holding()) }); err != nil {
		state.Stuck = append(state.Stuck, "while the holder holds: "+err.Error())
		state.Stuck = append(state.Stuck, c.pendingOfOthers()...)
	}
	for _, place := range c.places[:len(c.places)-1] {
		if late, err := c.endedWindows(place, 10*time.Second); err != nil || late > 0 {
			state.Left = append(state.Left,
				fmt.Sprintf("%d dedup windows of %s ended more than 10s ago and are still there (%v)",
					late, place, err))
		}
	}
	c.holder.signal(finishHolding)
	if err := c.await(c.cfg.Settle, func() (string, error) { return c.busy(0) }); err != nil {
		state.Stuck = append(state.Stuck, "after the holder let go: "+err.Error())
	}
	for _, roles := range [][]string{{roleHolder, roleWorker, rolePlain, roleHTTPWorker}, {roleGateway}, {roleBridge}} {
		if err := endAll(c.family.of(roles...), 20*time.Second); err != nil {
			return state, fmt.Errorf("a clean stop: %w", err)
		}
	}
	err := c.leftovers(&state)
	for _, place := range c.places {
		letters, e := c.letters(place)
		state.Letters = append(state.Letters, letters...)
		err = errors.Join(err, e)
	}
	return state, err
}

// holding returns how many messages the holder still holds. It holds all that it took, unless the machine was too
// slow to extend them.
func (c *controller) holding() int { return c.heldBy(c.holder) }

// heldBy returns how many entries of the main queue are pending for a process.
func (c *controller) heldBy(s *slot) (n int) {
	for _, place := range c.places[:len(c.places)-1] {
		n += c.heldIn(place, s)
	}
	return n
}

func (c *controller) heldIn(place string, s *slot) int {
	reply, err := c.do("XPENDING", c.keys[place].Stream, s.part.Group)
	if err != nil {
		return 0
	}
	summary, err := reply.ToArray()
	if err != nil || len(summary) != 4 {
		return 0
	}
	rows, _ := summary[3].ToArray()
	for _, row := range rows {
		if cells, err := row.AsStrSlice(); err == nil && len(cells) == 2 && cells[0] == s.current() {
			n, _ := strconv.Atoi(cells[1])
			return n
		}
	}
	return 0
}

// busy describes everything that is not at rest: scheduled, pending, or an entry, except for what the holder holds.
func (c *controller) busy(held int) (string, error) {
	var left []string
	note := func(what string, n, want int) {
		if n != want {
			left = append(left, fmt.Sprintf("%s %d (not %d)", what, n, want))
		}
	}
	for _, place := range c.places {
		k := c.keys[place]
		for name, args := range map[string][]string{"scheduled": {"ZCARD", k.Due}, "payloads": {"HLEN", k.Payload},
			"metas": {"HLEN", k.Meta}} {
			n, err := c.number(args...)
			if err != nil {
				return "", err
			}
			note(place+" "+name, n, 0)
		}
	}
	main, err := c.main()
	side, err2 := c.stream(c.keys[queueSide].Stream)
	note(queueMain+" entries", main.length, held)
	note(queueSide+" entries", side.length, 0)
	for _, group := range groups {
		want := 0
		if group == groups[0] {
			want = held
		}
		note(queueMain+" pending of "+group, main.groups[group], want)
		note(queueSide+" pending of "+group, side.groups[group], 0)
	}
	return strings.Join(left, ", "), errors.Join(err, err2)
}

// pendingOfOthers names some entries that processes other than the holder hold.
func (c *controller) pendingOfOthers() []string {
	var lines []string
	for _, place := range c.places {
		for _, group := range groups {
			reply, err := c.do("XPENDING", c.keys[place].Stream, group, "-", "+", "5000")
			rows, _ := reply.ToArray()
			for _, row := range rows {
				cells, e := row.ToArray()
				if e != nil || len(cells) < 4 || len(lines) >= 5 {
					continue
				}
				entry, _ := cells[0].ToString()
				consumer, _ := cells[1].ToString()
				idle, _ := cells[2].AsInt64()
				if consumer != c.holder.current() {
					lines = append(lines, fmt.Sprintf("%s/%s: entry %s is pending with %s for %d ms", place, group, entry,
						consumer, idle))
				}
			}
			if err != nil {
				lines = append(lines, err.Error())
			}
		}
	}
	return lines
}

// endedWindows counts the dedup windows of a partition that ended at least ago before now and are still stored.
func (c *controller) endedWindows(place string, ago time.Duration) (int, error) {
	return c.number("ZCOUNT", c.keys[place].Seen, "-inf", number(time.Now().Add(-ago).UnixMilli()))
}

// watched returns how long ago a bridge last recorded that it checks a partition for abandoned entries, or 0 if there
// is no record.
func (c *controller) watched(place string) (time.Duration, error) {
	reply, err := c.do("HGET", c.keys[place].Calm, "seen_ms")
	if err != nil || reply.IsNil() {
		return 0, err
	}
	ms, err := reply.AsInt64()
	return time.Since(time.UnixMilli(ms)), err
}

// idleTidy bounds how long an expired window, and the record of the last check for abandoned entries, may stay in an
// idle queue. Idle queues are cleaned up one by one, every half minute at first.
const (
	idleTidy  = 90 * time.Second
	maxWindow = 2 * time.Minute // every window ends earlier
)

// leftovers checks every key in Redis, and adds to state what should be gone.
func (c *controller) leftovers(state *State) error {
	g := lua.NewGlobals(prefix)
	known := map[string]bool{g.Queues: true, g.Defaults: true, g.Bridges: true, g.Wake: true, g.Tokens: true}
	for _, place := range c.places {
		k := c.keys[place]
		for _, key := range []string{k.Stream, k.Dead, k.Wake, k.Seen, k.Calm} {
			known[key] = true // their content is checked below
		}
		known[k.Policy], known[k.History] = true, true // the history stays for its retention time
		known[k.Changes] = true                        // of the policy
		if n, err := c.number("HLEN", k.Planned); err != nil {
			return err
		} else if n == 1 {
			known[k.Planned] = true // the count of changed recurrences
		}
		late, err := c.endedWindows(place, idleTidy)
		future, err2 := c.number("ZCOUNT", k.Seen, number(time.Now().Add(maxWindow).UnixMilli()), "+inf")
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if ago, err := c.watched(place); err != nil {
			return err
		} else if ago > idleTidy {
			state.Left = append(state.Left, fmt.Sprintf("%s: noted %s ago", k.Calm, ago))
		}
		if late+future > 0 {
			state.Left = append(state.Left, fmt.Sprintf("%s: %d ended windows, %d windows without end", k.Seen, late, future))
		}
		s, err := c.stream(k.Stream)
		if err != nil {
			return err
		}
		if s.length != 0 {
			state.Left = append(state.Left, fmt.Sprintf("%s: %d entries", k.Stream, s.length))
		}
		for group, pending := range s.groups {
			consumers, err := c.consumers(k.Stream, group)
			if err != nil {
				return err
			}
			if pending > 0 || len(consumers) > 0 {
				state.Left = append(state.Left, fmt.Sprintf("%s, group %s: %d pending, consumers %v", k.Stream, group, pending,
					consumers))
			}
		}
	}
	if bridges, err := c.number("ZCARD", g.Bridges); err != nil || bridges > 0 {
		state.Left = append(state.Left, fmt.Sprintf("%d bridges, all of which left (%v)", bridges, err))
	}
	replies, err := c.all("KEYS", "*")
	for _, reply := range replies {
		keys, _ := reply.AsStrSlice()
		for _, key := range keys {
			if !known[key] {
				known[key] = true // once, because a replica has it, too
				state.Left = append(state.Left, key)
			}
		}
	}
	return err
}

// consumers names the consumers of a group that should be gone. Go workers delete themselves at a clean stop. Killed
// ones and plain workers stay until they have been idle for an hour.
func (c *controller) consumers(stream, group string) ([]string, error) {
	reply, err := c.do("XINFO", "CONSUMERS", stream, group)
	if err != nil {
		return nil, err
	}
	rows, err := reply.ToArray()
	var left []string
	alive := map[string]bool{}
	for _, s := range c.family.of(roleWorker, roleHolder) {
		alive[s.current()] = true
	}
	for _, row := range rows {
		fields, e := row.AsMap()
		if e != nil {
			return nil, e
		}
		nameField := fields["name"]
		if name, _ := nameField.ToString(); alive[name] || name == lua.ReclaimConsumer {
			left = append(left, name)
		}
	}
	return left, err
}

// letters reads all dead letters of a partition.
func (c *controller) letters(place string) ([]Letter, error) {
	var letters []Letter
	for from := "-"; ; {
		reply, err := c.do("XRANGE", c.keys[place].Dead, from, "+", "COUNT", "1000")
		if err != nil {
			return nil, err
		}
		page, err := reply.AsXRangeSlices()
		if err != nil && !rueidis.IsRedisNil(err) {
			return nil, err
		}
		for _, one := range page {
			l := lua.ParseLetter(one.ID, one.FieldValues)
			letters = append(letters, Letter{
				Queue: place, ID: l.ID, Group: l.Group, Reason: l.Reason, Entry: l.FailedEntry, Attempt: l.Attempt,
				At: l.Dead.UnixMilli(),
			})
			from = "(" + one.ID
		}
		if len(page) < 1000 {
			return letters, nil
		}
	}
}
