package bridgetest

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// timedClient is a client of a server that seems to have the clock of a kit: scripts of duestream and the command TIME
// get the time of that clock.
type timedClient struct {
	rueidis.Client
	timed
}

// timed changes commands, and notes that they run.
type timed struct {
	clock    *kitClock
	activity *activity // nil: the commands are the kit's own
	readers  *readers
	blocking bool // the client is for blocking reads: whoever reads with it is a worker
}

// Do implements rueidis.Client.
func (c *timedClient) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	return c.do(ctx, c.Client, cmd)
}

// DoMulti implements rueidis.Client.
func (c *timedClient) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	return c.doMulti(ctx, c.Client, cmds)
}

// Dedicated implements rueidis.Client.
func (c *timedClient) Dedicated(run func(rueidis.DedicatedClient) error) error {
	return c.Client.Dedicated(func(one rueidis.DedicatedClient) error { return run(&timedDedicated{one, c.timed}) })
}

// Dedicate implements rueidis.Client.
func (c *timedClient) Dedicate() (rueidis.DedicatedClient, func()) {
	one, giveBack := c.Client.Dedicate()
	return &timedDedicated{one, c.timed}, giveBack
}

// Nodes implements rueidis.Client.
func (c *timedClient) Nodes() map[string]rueidis.Client {
	nodes := c.Client.Nodes()
	for addr, node := range nodes {
		nodes[addr] = &timedClient{node, c.timed}
	}
	return nodes
}

// timedDedicated is a timedClient on a connection of its own.
type timedDedicated struct {
	rueidis.DedicatedClient
	timed
}

// Do implements rueidis.DedicatedClient.
func (c *timedDedicated) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	return c.do(ctx, c.DedicatedClient, cmd)
}

// DoMulti implements rueidis.DedicatedClient.
func (c *timedDedicated) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	return c.doMulti(ctx, c.DedicatedClient, cmds)
}

func (t timed) do(ctx context.Context, c rueidis.CommandClient, cmd rueidis.Completed) rueidis.RedisResult {
	words := cmd.Commands()
	waits := t.blocking || slices.Contains(words[:min(len(words), 8)], "BLOCK")
	if group, consumer, streams := readOf(words); waits && streams != nil && t.readers != nil {
		t.readers.begin(group, consumer, streams)
		reply := c.Do(ctx, cmd)
		if ctx.Err() != nil {
			t.readers.end(group, consumer, streams)
		}
		t.clock.order()
		return reply
	}
	if waits && words[0] == "XREAD" { // it changes nothing
		return c.Do(ctx, cmd)
	}
	defer t.activity.begin()()
	return c.Do(ctx, t.convert(c, cmd))
}

func (t timed) doMulti(ctx context.Context, c rueidis.CommandClient, cmds []rueidis.Completed) []rueidis.RedisResult {
	defer t.activity.begin()()
	changed := make([]rueidis.Completed, len(cmds))
	for i, cmd := range cmds {
		changed[i] = t.convert(c, cmd)
	}
	return c.DoMulti(ctx, changed...)
}

// timeText answers like the command TIME, with the clock of the kit.
const timeText = "return {ARGV[1], ARGV[2]}"

// convert returns the command that has the effect of cmd by the clock of the kit.
func (t timed) convert(c rueidis.CommandClient, cmd rueidis.Completed) rueidis.Completed {
	words := cmd.Commands()
	if len(words) == 1 && words[0] == "TIME" {
		seconds, micros, _ := t.clock.words()
		return c.B().Eval().Script(timeText).Numkeys(0).Arg(seconds, micros).Build()
	}
	if len(words) > 3 && words[0] == "ZADD" {
		t.activity.noteSchedule(words[1])
	}
	if len(words) < 3 || !strings.HasPrefix(words[0], "EVAL") {
		return cmd
	}
	isSHA := strings.HasPrefix(words[0], "EVALSHA")
	sha := words[1]
	if !isSHA {
		sha = sha1Of(words[1])
	}
	script := timedBySHA(sha)
	numKeys, err := strconv.Atoi(words[2])
	if script == nil || err != nil || len(words) < 3+numKeys {
		return cmd
	}
	keys := words[3 : 3+numKeys]
	seconds, micros, stamp := t.clock.words()
	args := append(append([]string{}, words[3+numKeys:]...), seconds, micros, stamp)
	n := int64(numKeys)
	switch words[0] {
	case "EVALSHA":
		return c.B().Evalsha().Sha1(script.sha).Numkeys(n).Key(keys...).Arg(args...).Build()
	case "EVALSHA_RO":
		return c.B().EvalshaRo().Sha1(script.sha).Numkeys(n).Key(keys...).Arg(args...).Build()
	case "EVAL_RO":
		return c.B().EvalRo().Script(script.text).Numkeys(n).Key(keys...).Arg(args...).Build()
	}
	return c.B().Eval().Script(script.text).Numkeys(n).Key(keys...).Arg(args...).Build()
}

// readOf returns the group, the consumer and the streams of an XREADGROUP; no streams for any other command.
func readOf(words []string) (group, consumer string, streams []string) {
	if len(words) < 7 || words[0] != "XREADGROUP" || words[1] != "GROUP" {
		return "", "", nil
	}
	for i, word := range words {
		if word == "STREAMS" {
			rest := words[i+1:]
			return words[2], words[3], append([]string{}, rest[:len(rest)/2]...)
		}
	}
	return "", "", nil
}
