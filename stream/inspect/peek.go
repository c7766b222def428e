package inspect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Due is a member of the schedule: a message, or a retry of one.
type Due struct {
	Due         time.Time         `json:"due"`
	Overdue     bool              `json:"overdue,omitempty"` // by the server's clock
	ID          string            `json:"id"`
	Partition   int               `json:"partition,omitempty"`
	For         string            `json:"for,omitempty"` // a retry: the group
	Attempt     int               `json:"attempt"`
	MaxAttempts int               `json:"max_attempts,omitempty"`
	Expires     time.Time         `json:"expires,omitzero"`
	Error       string            `json:"error,omitempty"` // of the attempt before
	Headers     map[string]string `json:"headers,omitempty"`
	Bytes       int64             `json:"payload_bytes"`
	Payload     view.Payload      `json:"payload,omitempty"`   // when it was asked for
	Malformed   bool              `json:"malformed,omitempty"` // its meta cannot be read: it will be a dead letter

	member string
}

// Peeked is the beginning of a queue's schedule.
type Peeked struct {
	At    time.Time // by the server's clock
	Next  []Due
	Total int64 // how many members the schedule has
	Held  bool
}

const (
	peekPage  = 1000    // members of the schedule read at a time
	peekBatch = 100     // members of which meta and size are read at a time
	peekBytes = 1 << 20 // of payloads or metas read at a time; one that is larger comes alone
)

// Peek returns the n members of a queue's schedule that are due first, of all partitions together, in the order of due time and
// ID; with payloads if they are asked for. One round trip per partition and 1,000 members, and further ones for what they hold.
func Peek(ctx context.Context, c rueidis.Client, prefix, queue string, n int, payloads bool) (Peeked, error) {
	counts, err := stream.Partitions(ctx, c, prefix, queue)
	if err != nil {
		return Peeked{}, err
	}
	fail := func(err error) (Peeked, error) { return Peeked{}, fmt.Errorf("peek into %s: %w", queue, err) }
	var p Peeked
	if p.At, err = view.ServerTime(ctx, c); err != nil {
		return fail(err)
	}
	policy, _, err := stream.ReadPolicy(ctx, c, prefix, queue, "")
	if err != nil {
		return fail(err)
	}
	p.Held = policy.Held
	names := counts.Names(queue)
	lists, totals := make([][]Due, len(names)), make([]int64, len(names))
	err = view.EachPartition(names, func(i int, name string) (err error) {
		lists[i], totals[i], err = readDue(ctx, c, lua.NewKeys(prefix, name).Due, n)
		return err
	})
	if err != nil {
		return fail(err)
	}
	p.Next = []Due{}
	for i, list := range lists {
		p.Total += totals[i]
		for k := range list {
			list[k].Partition = i
			list[k].Overdue = !list[k].Due.After(p.At)
		}
	}
	p.Next = firstDue(lists, n)
	err = view.EachPartition(names, func(i int, name string) error {
		var own []*Due
		for k := range p.Next {
			if p.Next[k].Partition == i {
				own = append(own, &p.Next[k])
			}
		}
		return readMembers(ctx, c, lua.NewKeys(prefix, name), own, payloads)
	})
	if err != nil {
		return fail(err)
	}
	return p, nil
}

// firstDue merges lists that are in order.
func firstDue(lists [][]Due, n int) []Due {
	merged := []Due{}
	at := make([]int, len(lists))
	for len(merged) < n {
		best := -1
		for i, list := range lists {
			if at[i] == len(list) {
				continue
			}
			if best < 0 || list[at[i]].before(lists[best][at[best]]) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		merged = append(merged, lists[best][at[best]])
		at[best]++
	}
	return merged
}

func (d Due) before(e Due) bool {
	return d.Due.Before(e.Due) || d.Due.Equal(e.Due) && d.member < e.member
}

// readDue returns the first n members of a partition's schedule, and how many it has.
func readDue(ctx context.Context, c rueidis.Client, key string, n int) (list []Due, total int64, err error) {
	for len(list) < n {
		call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		from := int64(len(list))
		replies := c.DoMulti(call, c.B().Zcard().Key(key).Build(),
			c.B().Zrange().Key(key).Min(fmt.Sprint(from)).Max(fmt.Sprint(from+int64(min(peekPage,
				n-len(list)))-1)).Withscores().Build())
		cancel()
		if total, err = replies[0].AsInt64(); err != nil {
			return nil, 0, lua.Classify("ZCARD "+key, err)
		}
		page, err := replies[1].AsZScores()
		if err != nil {
			return nil, 0, lua.Classify("ZRANGE "+key, err)
		}
		for _, one := range page {
			list = append(list, Due{Due: view.ScoreTime(one.Score), ID: one.Member, member: one.Member})
		}
		if len(page) < peekPage {
			break
		}
	}
	return list, total, nil
}

// readMembers fills in what payload and meta say.
func readMembers(ctx context.Context, c rueidis.Client, keys lua.Keys, list []*Due, payloads bool) error {
	for len(list) > 0 {
		batch := list[:min(peekBatch, len(list))]
		list = list[len(batch):]
		cmds := make([]rueidis.Completed, 0, 2*len(batch))
		for _, d := range batch {
			cmds = append(cmds, c.B().Hstrlen().Key(keys.Payload).Field(d.member).Build(),
				c.B().Hstrlen().Key(keys.Meta).Field(d.member).Build())
		}
		call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		replies := c.DoMulti(call, cmds...)
		cancel()
		metas := make([]int64, len(batch))
		var failed, failedToo error
		for i, d := range batch {
			d.Bytes, failed = replies[2*i].AsInt64()
			metas[i], failedToo = replies[2*i+1].AsInt64()
			if err := errors.Join(failed, failedToo); err != nil {
				return lua.Classify("HSTRLEN "+keys.Payload, err)
			}
		}
		for first := 0; first < len(batch); {
			end, bytes := first, int64(0)
			for end < len(batch) && (end == first || bytes < peekBytes) {
				if bytes += metas[end]; payloads {
					bytes += batch[end].Bytes
				}
				end++
			}
			if err := readValues(ctx, c, keys, batch[first:end], payloads); err != nil {
				return err
			}
			first = end
		}
	}
	return nil
}

func readValues(ctx context.Context, c rueidis.Client, keys lua.Keys, batch []*Due, payloads bool) error {
	members := make([]string, len(batch))
	for i, d := range batch {
		members[i] = d.member
	}
	cmds := []rueidis.Completed{c.B().Hmget().Key(keys.Meta).Field(members...).Build()}
	if payloads {
		cmds = append(cmds, c.B().Hmget().Key(keys.Payload).Field(members...).Build())
	}
	ctx, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	replies := c.DoMulti(ctx, cmds...)
	metas, err := replies[0].ToArray()
	if err != nil {
		return lua.Classify("HMGET "+keys.Meta, err)
	}
	for i, d := range batch {
		meta, _ := metas[i].ToString() // nil: there is none
		d.read(meta)
	}
	if !payloads {
		return nil
	}
	bodies, err := replies[1].ToArray()
	if err != nil {
		return lua.Classify("HMGET "+keys.Payload, err)
	}
	for i, d := range batch {
		if d.Payload, err = bodies[i].AsBytes(); err != nil {
			d.Payload = view.Payload{}
		}
		d.Bytes = int64(len(d.Payload))
	}
	return nil
}

// read takes apart the member and its meta.
func (d *Due) read(meta string) {
	m := lua.ParseMember(d.member)
	d.ID = m.ID
	e, ok := lua.DecodeMeta(d.ID, meta)
	d.Malformed = !ok
	d.For, d.Attempt, d.MaxAttempts, d.Expires, d.Error, d.Headers = e.For, e.Attempt, e.MaxAttempts, e.Expires, e.Error,
		e.Headers
	if d.For == "" {
		d.For = m.Group
	}
	if e.ID != "" {
		d.ID = e.ID
	}
}
