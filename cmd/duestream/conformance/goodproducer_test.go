package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// plainProducer is a producer by plain commands. broken names its one fault, or is "".
type plainProducer struct {
	client                rueidis.Client
	prefix, queue, broken string
	counts                lua.Counts
	read                  time.Time // last read of the registry
}

func runPlainProducer(broken string) error {
	opt, err := rueidis.ParseURL(os.Getenv("DUESTREAM_REDIS_URL"))
	if err != nil {
		return err
	}
	opt.DisableCache, opt.DisableRetry = true, true
	p := &plainProducer{prefix: os.Getenv("DUESTREAM_PREFIX"), queue: os.Getenv("QUEUE"), broken: broken}
	if p.client, err = connect(opt); err != nil {
		return err
	}
	defer p.client.Close()
	return eachOrder(func(o order) error {
		var keys *lua.Keys // of the first try: a repeat goes to the same keys
		for begun := time.Now(); ; wait(context.Background(), 100*time.Millisecond) {
			err := p.schedule(o, &keys)
			refused := (*rueidis.RedisError)(nil)
			if err == nil || errors.As(err, &refused) && !lua.Temporary(lua.Classify("", err)) ||
				time.Since(begun) > 15*time.Second {
				return err
			}
		}
	})
}

// connect retries for 20 s if the server does not answer.
func connect(opt rueidis.ClientOption) (c rueidis.Client, err error) {
	for range 200 {
		if c, err = rueidis.NewClient(opt); err == nil {
			return c, nil
		}
		wait(context.Background(), 100*time.Millisecond)
	}
	return nil, err
}

// eachOrder reads orders, and answers each.
func eachOrder(schedule func(order) error) error {
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) == 0 && err != nil {
			return nil
		}
		var o order
		if err := json.Unmarshal(line, &o); err != nil {
			return err
		}
		reply := map[string]any{"id": o.ID, "ok": true}
		if err := schedule(o); err != nil {
			reply["ok"], reply["error"] = false, err.Error()
		}
		text, err := json.Marshal(reply)
		if err != nil {
			return err
		}
		if _, err := os.Stdout.Write(append(text, '\n')); err != nil {
			return err
		}
	}
}

func (p *plainProducer) schedule(o order, keys **lua.Keys) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	c, g := p.client, lua.NewGlobals(p.prefix)
	if time.Since(p.read) > 5*time.Second {
		if p.broken == "sets-registry" {
			if err := c.Do(ctx, c.B().Hset().Key(g.Queues).FieldValue().FieldValue(p.queue, "1").Build()).Error(); err != nil {
				return err
			}
		}
		added, err := c.Do(ctx, c.B().Hsetnx().Key(g.Queues).Field(p.queue).Value("1").Build()).AsInt64()
		if err != nil {
			return err
		}
		if added == 1 {
			_ = c.Do(ctx, c.B().Xadd().Key(g.Wake).Maxlen().Threshold("1").Id("*").FieldValue().
				FieldValue("queues", "1").Build()).Error()
		}
		if p.counts, err = lua.ReadCounts(ctx, c, g, p.queue); err != nil {
			return err
		}
		p.read = time.Now()
	}
	if *keys == nil {
		k := lua.NewKeys(p.prefix, lua.PartitionName(p.queue, p.counts.Of(o.ID)))
		*keys = &k
	}
	return p.write(ctx, **keys, o)
}

func (p *plainProducer) write(ctx context.Context, k lua.Keys, o order) error {
	meta := map[string]string{}
	for name, value := range o.Headers {
		meta["h:"+name] = value
	}
	if o.MaxAttempts > 0 {
		meta["max_attempts"] = strconv.Itoa(o.MaxAttempts)
	}
	if o.Expires > 0 {
		meta["expires_ms"] = strconv.FormatInt(o.Expires, 10)
	}
	b := p.client.B()
	hash := func(key, value string) rueidis.Completed {
		if value == "" {
			return b.Hdel().Key(key).Field(o.ID).Build()
		}
		return b.Hset().Key(key).FieldValue().FieldValue(o.ID, value).Build()
	}
	due := o.Due
	if p.broken == "seconds" {
		due /= 1000
	}
	fields := ""
	if len(meta) > 0 {
		text, err := json.Marshal(meta)
		if err != nil {
			return err
		}
		fields = string(text)
	}
	body := rueidis.Commands{hash(k.Payload, string(o.Payload))}
	if fields != "" || p.broken != "keeps-headers" {
		body = append(body, hash(k.Meta, fields))
	}
	zadd := b.Zadd().Key(k.Due).ScoreMember().ScoreMember(float64(due), o.ID).Build()
	var after rueidis.Commands
	if p.broken != "no-wake" {
		after = append(after, b.Xadd().Key(k.Wake).Maxlen().Threshold("1").Id("*").FieldValue().
			FieldValue("due_ms", strconv.FormatInt(due, 10)).Build())
	}
	if p.broken == "expiry" {
		after = append(after, b.Expire().Key(k.Payload).Seconds(86400).Build())
	}
	if p.broken == "zadd-first" {
		return firstReply(p.client.DoMulti(ctx, append(append(rueidis.Commands{zadd}, body...), after...)...))
	}
	all := append(rueidis.Commands{b.Multi().Build()}, body...)
	all = append(append(append(all, zadd), after...), b.Exec().Build())
	return p.client.Dedicated(func(c rueidis.DedicatedClient) error {
		replies := c.DoMulti(ctx, all...)
		each, err := replies[len(replies)-1].ToArray()
		for i := 0; err == nil && i < len(each); i++ {
			if err = each[i].Error(); rueidis.IsRedisNil(err) {
				err = nil
			}
		}
		if err != nil {
			return fmt.Errorf("schedule: %w", err)
		}
		return nil
	})
}

func firstReply(replies []rueidis.RedisResult) error {
	for _, r := range replies {
		if err := r.Error(); err != nil {
			return err
		}
	}
	return nil
}
