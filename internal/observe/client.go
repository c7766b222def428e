package observe

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// Wrap returns a client that reports each call to an observer. If the observer is nil, it returns the client itself.
func Wrap(c rueidis.Client, o Observer) rueidis.Client {
	if o == nil {
		return c
	}
	return &observedClient{c, o}
}

type observedClient struct {
	rueidis.Client
	observer Observer
}

// Do implements rueidis.Client.
func (c *observedClient) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	script, began := scriptOf(cmd), time.Now()
	reply := c.Client.Do(ctx, cmd)
	c.tell(ctx, script, time.Since(began), reply.Error())
	return reply
}

// DoMulti implements rueidis.Client. If a script is sent with other commands, the time of all of them counts as the
// script's time.
func (c *observedClient) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	script := ""
	if len(cmds) > 0 {
		if script = scriptOf(cmds[len(cmds)-1]); script == "" {
			script = scriptOf(cmds[0])
		}
	}
	began := time.Now()
	replies := c.Client.DoMulti(ctx, cmds...)
	var failed error
	for i := range replies {
		if err := replies[i].Error(); err != nil && !rueidis.IsRedisNil(err) {
			failed = err
			break
		}
	}
	c.tell(ctx, script, time.Since(began), failed)
	return replies
}

func (c *observedClient) tell(ctx context.Context, script string, took time.Duration, err error) {
	if err != nil {
		if answer, ok := rueidis.IsRedisErr(err); ok && answer.IsNoScript() {
			return // the client library sends the script's text now
		}
		if rueidis.IsRedisNil(err) || errors.Is(ctx.Err(), context.Canceled) {
			err = nil
		}
	}
	if script == "" && err == nil {
		return
	}
	c.observer.Call(script, took, err)
}

// scriptOf returns the name of the script that a command runs; "" if it runs none of ours.
func scriptOf(cmd rueidis.Completed) string {
	words := cmd.Commands()
	if len(words) > 1 && len(words[1]) == 40 && strings.HasPrefix(words[0], "EVALSHA") {
		return lua.ScriptName(words[1])
	}
	return ""
}
