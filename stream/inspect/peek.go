package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Due is a member of the schedule: a message, or a retry of one.
type Due struct {
	Due         time.Time         `json:"due"`
	Overdue     bool              `json:"overdue,omitempty"` // by the server's clock
	Key         string            `json:"key,omitempty"`
	Waits       bool              `json:"waits_for_key,omitempty"` // due, but another message of its key is in flight
	ID          string            `json:"id"`
	Partition   int               `json:"partition,omitempty"`
	For         string            `json:"for,omitempty"` // a retry: the group
	Attempt     int               `json:"attempt"`
	MaxAttempts int               `json:"max_attempts,omitempty"`
	Expires     time.Time         `json:"expires,omitzero"`
	Error       string            `json:"error,omitempty"` // of the last attempt
	Headers     map[string]string `json:"headers,omitempty"`
	Bytes       int64             `json:"payload_bytes"`
	Payload     view.Payload      `json:"payload,omitempty"`   // if requested
	Malformed   bool              `json:"malformed,omitempty"` // its meta cannot be read: it will be a dead letter

	member string
}

// Peeked is the beginning of a queue's schedule.
type Peeked struct {
	At    time.Time // by the server's clock
	Next  []Due
	Total int64 // size of the schedule
	Held  bool
}

const (
	peekPage  = 1000    // members of the schedule per read
	peekBatch = 100     // members whose meta and size are read at once
	peekBytes = 1 << 20 // bytes of payloads and metas per read; a larger one is read alone
)

// Peek returns the n members of a queue's schedule that are due first, over all partitions, sorted by due time and ID,
// on request with payloads. One round trip per partition and 1,000 members, and further ones for their contents.
func Peek(ctx context.Context, c rueidis.Client, prefix, queue string, n int, payloads bool) (Peeked, error) {
	counts, err := stream.Partitions(ctx, c, prefix, queue)
	if err != nil {
		return Peeked{}, err
	}
	p, err := readPeeked(ctx, c, prefix, queue, counts.Names(queue), n, payloads)
	if err != nil {
		return Peeked{}, fmt.Errorf("peek into %s: %w", queue, err)
	}
	return p, nil
}

func readPeeked(ctx context.Context, c rueidis.Client, prefix, queue string, names []string, n int, payloads bool) (p Peeked,
	err error) {
	if p.At, err = view.ServerTimeOf(ctx, c, lua.NewKeys(prefix, queue).Due); err != nil {
		return p, err
	}
	policy, _, err := stream.ReadPolicy(ctx, c, prefix, queue, "")
	if err != nil {
		return p, err
	}
	p.Held = policy.Held
	totals := make([]int64, len(names))
	lists, err := view.ReadPartitions(prefix, names, func(i int, keys lua.Keys) (list []Due, err error) {
		list, totals[i], err = readDue(ctx, c, keys.Due, n)
		for k := range list {
			list[k].Partition, list[k].Overdue = i, !list[k].Waits && !list[k].Due.After(p.At)
		}
		return list, err
	})
	if err != nil {
		return p, err
	}
	p.Next = append([]Due{}, slices.Concat(lists...)...)
	slices.SortStableFunc(p.Next, func(a, b Due) int { return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.member, b.member)) })
	p.Next = p.Next[:max(0, min(n, len(p.Next)))]
	members := make([][]*Due, len(names))
	for i := range p.Next {
		d := &p.Next[i]
		members[d.Partition] = append(members[d.Partition], d)
	}
	for _, total := range totals {
		p.Total += total
	}
	return p, view.EachPartition(names, func(i int, name string) error {
		return readMembers(ctx, c, lua.NewKeys(prefix, name), members[i], payloads)
	})
}

// readDue returns the first n members of a partition's schedule, and its size.
func readDue(ctx context.Context, c rueidis.Client, key string, n int) (list []Due, total int64, err error) {
	for len(list) < n {
		from := len(list)
		last := from + min(peekPage, n-from) - 1
		var page []rueidis.ZScore
		if err := view.Ask(ctx, c, view.Number(c.B().Zcard().Key(key).Build(), &total),
			view.Scores(c.B().Zrange().Key(key).Min(strconv.Itoa(from)).Max(strconv.Itoa(last)).Withscores().Build(), &page),
		); err != nil {
			return nil, 0, err
		}
		for _, one := range page {
			_, waits := lua.DueScore(one.Score)
			list = append(list, Due{Due: view.ScoreTime(one.Score), Waits: waits, ID: one.Member, member: one.Member})
		}
		if len(page) < peekPage {
			break
		}
	}
	return list, total, nil
}

// readMembers fills in the contents of payloads and metas.
func readMembers(ctx context.Context, c rueidis.Client, keys lua.Keys, list []*Due, payloads bool) error {
	for batch := range slices.Chunk(list, peekBatch) {
		metas, questions := make([]int64, len(batch)), []view.Question(nil)
		for i, d := range batch {
			questions = append(questions, view.Number(c.B().Hstrlen().Key(keys.Payload).Field(d.member).Build(), &d.Bytes),
				view.Number(c.B().Hstrlen().Key(keys.Meta).Field(d.member).Build(), &metas[i]))
		}
		if err := view.Ask(ctx, c, questions...); err != nil {
			return err
		}
		for first := 0; first < len(batch); {
			end, bytes := first, int64(0)
			for end < len(batch) && (end == first || bytes < peekBytes) {
				bytes += metas[end]
				if payloads {
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
	var metas, bodies []rueidis.RedisMessage
	questions := []view.Question{
		view.Into(c.B().Hmget().Key(keys.Meta).Field(members...).Build(), &metas, rueidis.RedisResult.ToArray)}
	if payloads {
		questions = append(questions,
			view.Into(c.B().Hmget().Key(keys.Payload).Field(members...).Build(), &bodies, rueidis.RedisResult.ToArray))
	}
	if err := view.AskLong(ctx, c, questions...); err != nil {
		return err
	}
	for i, d := range batch {
		meta, _ := metas[i].ToString() // nil: it has no meta
		d.read(meta)
		if payloads {
			var err error
			if d.Payload, err = bodies[i].AsBytes(); err != nil {
				d.Payload = view.Payload{}
			}
			d.Bytes = int64(len(d.Payload))
		}
	}
	return nil
}

// read parses the member and its meta.
func (d *Due) read(meta string) {
	m := lua.ParseMember(d.member)
	d.ID = m.ID
	e, ok := lua.DecodeMeta(d.ID, meta)
	d.Malformed = !ok
	d.For, d.Attempt, d.MaxAttempts, d.Expires, d.Error, d.Headers = e.For, e.Attempt, e.MaxAttempts, e.Expires, e.Error,
		e.Headers
	d.Key = e.Extra[lua.FieldKey]
	if d.For == "" {
		d.For = m.Group
	}
	if e.ID != "" {
		d.ID = e.ID
	}
}
