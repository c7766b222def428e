package lua

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Bounds of a Durability.
const (
	MaxReplicas          = 100
	MaxDurabilityTimeout = time.Minute
)

// Durability says what a call waits for after the server has executed its write. The zero value waits for nothing.
type Durability struct {
	// Fsync: wait until the server has written its append-only file to disk (WAITAOF; Redis 7.2, any Valkey).
	Fsync    bool
	Replicas int           // wait until so many replicas hold the write in memory (WAIT)
	Timeout  time.Duration // how long the server waits at most, 1ms to 1m; 0 = the default of the caller
}

// Waits reports whether there is anything to wait for.
func (d Durability) Waits() bool { return d.Fsync || d.Replicas > 0 }

// String returns the form that users give: "accepted", "fsynced", "replicated=2", or "fsynced,replicated=2".
func (d Durability) String() string {
	var parts []string
	if d.Fsync {
		parts = append(parts, "fsynced")
	}
	if d.Replicas > 0 {
		parts = append(parts, "replicated="+strconv.Itoa(d.Replicas))
	}
	if len(parts) == 0 {
		return "accepted"
	}
	return strings.Join(parts, ",")
}

// ParseDurability reads what String writes.
func ParseDurability(text string) (d Durability, err error) {
	for _, part := range strings.Split(text, ",") {
		name, number, counted := strings.Cut(part, "=")
		switch {
		case part == "accepted":
		case part == "fsynced":
			d.Fsync = true
		case name == "replicated" && counted:
			if d.Replicas, err = strconv.Atoi(number); err != nil || d.Replicas < 1 {
				return d, Invalid("durability", text, "replicated must be between 1 and %d", MaxReplicas)
			}
		default:
			return d, Invalid("durability", text, "must be accepted, fsynced, replicated=<n>, or fsynced,replicated=<n>")
		}
	}
	return d, d.Validate()
}

// Validate refuses fewer than 0 or more than MaxReplicas replicas, and a Timeout that is set and not within 1ms to 1m.
func (d Durability) Validate() error {
	var errs []error
	if d.Replicas < 0 || d.Replicas > MaxReplicas {
		errs = append(errs, Invalid("durability", fmt.Sprint("replicated=", d.Replicas), "must be between 0 and %d replicas",
			MaxReplicas))
	}
	if d.Timeout != 0 {
		errs = append(errs, Between("durability timeout", d.Timeout, time.Millisecond, MaxDurabilityTimeout))
	}
	return errors.Join(errs...)
}

// ErrNotDurable is in the chain of every *NotDurableError.
var ErrNotDurable = errors.New("done, but not as durable as asked")

// NotDurableError says that the call was executed and its effect stays (a message is stored, a cancelled one is gone),
// but that the server did not confirm the durability within the timeout. A repeat of the call with the same ID waits
// again.
type NotDurableError struct {
	Want     Durability
	Fsynced  bool  // the write is in the server's append-only file on disk
	Replicas int   // how many replicas have the write
	Cause    error // why the server did not wait at all; nil = the timeout is over
}

func (e *NotDurableError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%v: %v", ErrNotDurable, e.Cause)
	}
	var lacks []string
	if e.Want.Fsync && !e.Fsynced {
		lacks = append(lacks, "not yet on the server's disk")
	}
	if e.Replicas < e.Want.Replicas {
		lacks = append(lacks, fmt.Sprintf("on %d of %d replicas", e.Replicas, e.Want.Replicas))
	}
	return fmt.Sprintf("%v: %s after %s", ErrNotDurable, strings.Join(lacks, ", "), e.Want.Timeout)
}

// Unwrap returns ErrNotDurable, and the cause if there is one.
func (e *NotDurableError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrNotDurable}
	}
	return []error{ErrNotDurable, e.Cause}
}

// CheckDurability asks the server whether it supports d. ErrUnsupported: the server does not know the command, has no
// append-only file, or answers before the file is on disk. key chooses the node of a cluster. It takes up to four round
// trips, and waits for no write.
func CheckDurability(ctx context.Context, c rueidis.Client, key string, d Durability) error {
	for _, cmd := range d.commands(c, key, time.Millisecond) {
		if err := c.Do(ctx, cmd).Error(); err != nil {
			return classifyWait(err)
		}
	}
	if !d.Fsync {
		return nil
	}
	hello, err := c.Do(ctx, c.B().Arbitrary("HELLO").Build()).AsMap()
	if err != nil {
		return Classify("HELLO", err)
	}
	product, version := hello["server"], hello["version"]
	name, _ := product.ToString()
	number, _ := version.ToString()
	if !answersTooEarly(name, number) {
		return nil
	}
	config, err := c.Do(ctx, c.B().ConfigGet().Parameter("appendfsync").Build()).AsStrMap()
	if err == nil && config["appendfsync"] == "always" {
		return nil
	}
	why := fmt.Errorf("%s %s answers before the file is on disk unless appendfsync is always, but appendfsync is %q", name,
		number, config["appendfsync"])
	return &kindError{"WAITAOF", ErrUnsupported, errors.Join(why, err)}
}

// answersTooEarly reports whether a server with appendfsync everysec answers WAITAOF before the file is on disk
// (redis/redis pull request 13793). Redis 7.4 does, and so does every Valkey that was tried (8.0.1, 8.1.1, 9.1.2).
func answersTooEarly(product, version string) bool {
	return product == "valkey" || strings.HasPrefix(version, "7.4.")
}

// commands returns the commands that wait, for the node that holds key.
func (d Durability) commands(c rueidis.Client, key string, timeout time.Duration) (cmds []rueidis.Completed) {
	ms := max(1, timeout.Milliseconds()) // the server takes 0 as no timeout
	if d.Fsync {
		cmds = append(cmds, c.B().Waitaof().Numlocal(1).Numreplicas(0).Timeout(ms).Build().SetSlot(key))
	}
	if d.Replicas > 0 {
		cmds = append(cmds, c.B().Wait().Numreplicas(int64(d.Replicas)).Timeout(ms).Build().SetSlot(key))
	}
	return cmds
}

// confirmed reads the replies to the commands of d. It returns nil if the write is as durable as d asks.
func (d Durability) confirmed(replies []rueidis.RedisResult) error {
	e := &NotDurableError{Want: d}
	for i, reply := range replies {
		var err error
		if i == 0 && d.Fsync {
			var counts []int64
			counts, err = reply.AsIntSlice() // local, replicas
			e.Fsynced = len(counts) > 0 && counts[0] > 0
		} else {
			var n int64
			n, err = reply.AsInt64()
			e.Replicas = int(n)
		}
		if err != nil {
			err = classifyWait(err)
			if Temporary(err) || Ambiguous(err) {
				// The server, its role or the connection was lost after the write, and the write perhaps with it.
				// Callers take an error reply as a sign that nothing was executed, which is not so here. So the error
				// is kept as text only, and counts as ambiguous.
				return &kindError{"wait", ErrUnavailable, errors.New(err.Error())}
			}
			e.Cause = err
			return e
		}
	}
	if e.Fsynced == d.Fsync && e.Replicas >= d.Replicas {
		return nil
	}
	return e
}

func classifyWait(err error) error {
	if re := (*rueidis.RedisError)(nil); errors.As(err, &re) && strings.Contains(re.Error(), "appendonly is disabled") {
		return &kindError{"WAITAOF", ErrUnsupported, err}
	}
	return Classify("wait", err)
}

// runDurably runs the script, then waits for d. WAIT counts only the writes of its own connection, so script and wait
// are sent on one connection. This function follows redirections, because the client library would follow them for the
// script alone. An error that is returned with a reply is about the wait.
func (s *script) runDurably(ctx context.Context, c rueidis.Client, keys, args []string,
	d Durability) (rueidis.RedisMessage, error) {
	if err := s.check(keys, args); err != nil {
		return rueidis.RedisMessage{}, err
	}
	node, asking, withSource := c, false, false
	for hops, w := 0, (MoveWait{}); ; hops++ {
		replies := s.send(ctx, node, keys, args, d, asking, withSource)
		reply, err := replies[0].ToMessage()
		if err == nil {
			return reply, d.confirmed(replies[1:])
		}
		re, answered := rueidis.IsRedisErr(err)
		if !answered {
			return reply, Classify(s.name, err)
		}
		moved, _ := re.IsMoved()
		ask, isAsk := re.IsAsk()
		switch next := c.Nodes()[moved+ask]; {
		case re.IsNoScript() && !withSource:
			withSource = true
		case next != nil && hops < maxHops:
			node, asking = next, isAsk
		case w.Again(ctx, err): // the client does not know the new server yet, or the servers disagree about the slot
			node, asking, hops = c, false, 0
		default:
			return reply, Classify(s.name, err)
		}
	}
}

// maxHops bounds how often a call follows a redirection, or sends a script's text to a server that does not know it,
// before it asks for the topology again.
const maxHops = 4

// send executes the script and waits for d, on one connection. The first reply is the script's. asking: send ASKING
// first, because the slot is moving to this node. withSource: send the script's text, because the node does not have
// it.
func (s *script) send(ctx context.Context, c rueidis.Client, keys, args []string, d Durability, asking,
	withSource bool) (replies []rueidis.RedisResult) {
	err := c.Dedicated(func(dc rueidis.DedicatedClient) error {
		var cmds []rueidis.Completed
		if asking {
			cmds = append(cmds, dc.B().Asking().Build().SetSlot(keys[0]))
		}
		if withSource {
			cmds = append(cmds, dc.B().Eval().Script(s.source).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
		} else {
			cmds = append(cmds, dc.B().Evalsha().Sha1(s.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
		}
		replies = dc.DoMulti(ctx, append(cmds, d.commands(c, keys[0], d.Timeout)...)...)
		if asking {
			replies = replies[1:]
		}
		return nil
	})
	if err != nil { // the client is closed, or the like
		return []rueidis.RedisResult{rueidis.NewResult(rueidis.RedisMessage{}, err)}
	}
	return replies
}

func sha1Hex(source string) string {
	h := sha1.Sum([]byte(source)) // the server's name for a script
	return hex.EncodeToString(h[:])
}
