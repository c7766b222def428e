package lua

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Limits of results.
const (
	MaxResultBytes = 64 << 10
	MaxResultAge   = 7 * 24 * time.Hour
)

// Result is the result of a group's work on a message.
type Result struct {
	Value   []byte
	Attempt int       // the attempt that succeeded
	Done    time.Time // when it was acknowledged, by the server's clock
	Entry   string    // ID of the stream entry that was acknowledged
}

// Result returns the key of the result of a message for a group. It is a string, `<done, Unix ms> <attempt> <entry>`, a
// line feed and the value, and expires.
func (k Keys) Result(group, id string) string {
	return strings.TrimSuffix(k.Due, "due") + "result:" + encoded(group) + ":" + id
}

// CheckResultAge refuses ages below a second and above a week.
func CheckResultAge(age time.Duration) error {
	if age < time.Second || age > MaxResultAge {
		return Invalid("keep result", age.String(), "must be from 1s to %s", MaxResultAge)
	}
	return nil
}

var ackResultScript = load("ack_result",
	[]string{"stream", "due", "wake", "turns", "policy", "history", "result"},
	[]string{"group", "entry", "id", "key", "attempt", "age", "value"}, nil)

// AckResult acknowledges an entry as Ack does, and stores its result for an age. held.ID is always compared. False
// means lost: nothing was stored. It may be repeated, and then answers false. One round trip.
func AckResult(ctx context.Context, c rueidis.Client, k Keys, group string, held Held, attempt int, age time.Duration,
	value []byte) (bool, error) {
	if strings.Contains(held.Key, Separator) { // another program wrote this key, and no message waits for such a key
		held.Key = ""
	}
	n, err := ackResultScript.integer(ctx, c,
		[]string{k.Stream, k.Due, k.Wake, k.Turns, k.Policy, k.History, k.Result(group, held.ID)},
		[]string{group, held.Entry, held.ID, held.Key, strconv.Itoa(max(1, attempt)), millis(age), string(value), k.Actor})
	return n == 1, err
}

// ReadResult reads the result of a message for a group in one of several partitions; ok is false if none has it. One
// round trip.
func ReadResult(ctx context.Context, c rueidis.Client, parts []Keys, group, id string) (r Result, ok bool, err error) {
	commands := make(rueidis.Commands, len(parts))
	for i, k := range parts {
		commands[i] = c.B().Get().Key(k.Result(group, id)).Build()
	}
	for i, reply := range c.DoMulti(ctx, commands...) {
		text, err := reply.AsBytes()
		if rueidis.IsRedisNil(err) {
			continue
		}
		if err != nil {
			return r, false, Classify("GET "+parts[i].Result(group, id), err)
		}
		one, err := parseResult(text)
		if err != nil {
			return r, false, fmt.Errorf("result %s: %w", parts[i].Result(group, id), err)
		}
		if !ok || one.Done.After(r.Done) {
			r, ok = one, true
		}
	}
	return r, ok, nil
}

func parseResult(text []byte) (r Result, err error) {
	line, value, found := bytes.Cut(text, []byte("\n"))
	words := strings.Fields(string(line))
	if !found || len(words) != 3 {
		return r, fmt.Errorf("%.64q does not parse", line)
	}
	r.Done, r.Entry, r.Value = parseMillis(words[0]), words[2], value
	r.Attempt, err = strconv.Atoi(words[1])
	if err == nil && r.Done.IsZero() {
		err = fmt.Errorf("%.64q does not parse", line)
	}
	return r, err
}
