package lookup

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Due is a member of the schedule: a message, or a retry of one.
type Due struct {
	Due         time.Time         `json:"due"`
	Overdue     bool              `json:"overdue,omitempty"`       // by the server's clock
	Key         string            `json:"key,omitempty"`           // ordering key
	Waits       bool              `json:"waits_for_key,omitempty"` // due, but another message of its key is in flight
	ID          string            `json:"id"`
	Partition   int               `json:"partition,omitempty"`
	For         string            `json:"for,omitempty"` // the only group of a retry; "": not a retry
	Attempt     int               `json:"attempt"`
	MaxAttempts int               `json:"max_attempts,omitempty"`
	Expires     time.Time         `json:"expires,omitzero"`
	Error       string            `json:"error,omitempty"` // of the last attempt
	Headers     map[string]string `json:"headers,omitempty"`
	Bytes       int64             `json:"payload_bytes"`
	Payload     view.Payload      `json:"payload,omitempty"`   // nil if it was not requested
	Malformed   bool              `json:"malformed,omitempty"` // unreadable meta: it becomes a dead letter when due

	member string
}

// Peeked is the beginning of a queue's schedule, or of the part of it that is due in a range of times.
type Peeked struct {
	At    time.Time // when it was read, by the server's clock
	Next  []Due     // sorted by due time and ID
	Total int64     // members of the whole schedule, or of the range
	Held  bool      // the queue is paused
}

const (
	peekPage  = 1000    // members of the schedule per read
	peekBatch = 100     // members whose sizes are read at once
	peekBytes = 1 << 20 // a read of payloads and metas ends with the member that reaches this number of bytes
)

// Peek returns the n members of a queue's schedule that are due first, over all partitions, and their payloads if
// payloads is true. It takes one round trip for every 1,000 members of each partition, and more for metas and payloads.
func Peek(ctx context.Context, c rueidis.Client, prefix, queue string, n int, payloads bool) (Peeked, error) {
	return peek(ctx, c, prefix, queue, peekRange{"-inf", "+inf"}, n, payloads)
}

// DueBetween is Peek without payloads, for the members that are due at from or later, and before until. Total is the
// number of these members. A zero from has no lower bound, and a zero until no upper bound. Members that wait for their
// ordering keys are left out. Times are rounded down to milliseconds.
func DueBetween(
	ctx context.Context, c rueidis.Client, prefix, queue string, from, until time.Time, n int,
) (Peeked, error) {
	var r peekRange
	r.least, r.most = view.ScoresBetween(from, until)
	return peek(ctx, c, prefix, queue, r, n, false)
}

// peekRange bounds the scores of the members that a peek shows, in the form of ZRANGE BYSCORE.
type peekRange struct{ least, most string }

func peek(
	ctx context.Context, c rueidis.Client, prefix, queue string, r peekRange, n int, payloads bool,
) (Peeked, error) {
	counts, err := stream.Partitions(ctx, c, prefix, queue)
	if err != nil {
		return Peeked{}, err
	}
	p, err := readPeeked(ctx, c, prefix, queue, counts.Names(queue), r, n, payloads)
	if err != nil {
		return Peeked{}, fmt.Errorf("peek into %s: %w", queue, err)
	}
	return p, nil
}

func readPeeked(
	ctx context.Context, c rueidis.Client, prefix, queue string, names []string, r peekRange, n int, payloads bool,
) (p Peeked, err error) {
	if p.At, err = view.ServerTimeOf(ctx, c, lua.NewKeys(prefix, queue).Due); err != nil {
		return p, err
	}
	queuePolicy, _, err := policy.Read(ctx, c, prefix, queue, "")
	if err != nil {
		return p, err
	}
	p.Held = queuePolicy.Held
	totals := make([]int64, len(names))
	lists, err := view.ReadPartitions(prefix, names, func(i int, keys lua.Keys) (list []Due, err error) {
		list, totals[i], err = readDue(ctx, c, keys.Due, r, n)
		for k := range list {
			d := &list[k]
			d.Partition = i
			d.Overdue = !d.Waits && !d.Due.After(p.At)
		}
		return list, err
	})
	if err != nil {
		return p, err
	}
	p.Next = append([]Due{}, slices.Concat(lists...)...) // not nil: JSON shows an empty list
	slices.SortStableFunc(p.Next, func(a, b Due) int {
		return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.member, b.member))
	})
	p.Next = p.Next[:max(0, min(n, len(p.Next)))]
	byPartition := make([][]*Due, len(names))
	for i := range p.Next {
		d := &p.Next[i]
		byPartition[d.Partition] = append(byPartition[d.Partition], d)
	}
	for _, total := range totals {
		p.Total += total
	}
	return p, view.EachPartition(names, func(i int, name string) error {
		return readContents(ctx, c, lua.NewKeys(prefix, name), byPartition[i], payloads)
	})
}

// readDue returns the first n members of a partition's schedule in a range, and the number of all members in the range.
func readDue(
	ctx context.Context, c rueidis.Client, key string, r peekRange, n int,
) (list []Due, total int64, err error) {
	for len(list) < n {
		var page []rueidis.ZScore
		count := c.B().Zcount().Key(key).Min(r.least).Max(r.most).Build()
		members := c.B().Zrange().Key(key).Min(r.least).Max(r.most).Byscore().
			Limit(int64(len(list)), int64(min(peekPage, n-len(list)))).Withscores().Build()
		err := view.Ask(ctx, c, view.Number(count, &total), view.Scores(members, &page))
		if err != nil {
			return nil, 0, err
		}
		for _, one := range page {
			list = append(list, Due{
				Due: view.Shown(view.ScoreTime(one.Score)), Waits: waitsForKey(one.Score), ID: one.Member,
				member: one.Member,
			})
		}
		if len(page) < peekPage {
			break
		}
	}
	return list, total, nil
}

// waitsForKey reports whether the score of a member says that its message waits for an ordering key.
func waitsForKey(score float64) bool {
	_, waits := lua.DueScore(score)
	return waits
}

// readContents reads the metas of members and the sizes of their payloads, and on request the payloads.
func readContents(ctx context.Context, c rueidis.Client, keys lua.Keys, list []*Due, payloads bool) error {
	for batch := range slices.Chunk(list, peekBatch) {
		metaBytes := make([]int64, len(batch))
		var questions []view.Question
		for i, d := range batch {
			questions = append(questions,
				view.Number(c.B().Hstrlen().Key(keys.Payload).Field(d.member).Build(), &d.Bytes),
				view.Number(c.B().Hstrlen().Key(keys.Meta).Field(d.member).Build(), &metaBytes[i]))
		}
		if err := view.Ask(ctx, c, questions...); err != nil {
			return err
		}
		for first := 0; first < len(batch); {
			end, bytes := first, int64(0)
			for end < len(batch) && bytes < peekBytes {
				bytes += metaBytes[end]
				if payloads {
					bytes += batch[end].Bytes
				}
				end++
			}
			if err := readMetasAndPayloads(ctx, c, keys, batch[first:end], payloads); err != nil {
				return err
			}
			first = end
		}
	}
	return nil
}

func readMetasAndPayloads(ctx context.Context, c rueidis.Client, keys lua.Keys, batch []*Due, payloads bool) error {
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
		meta, _ := metas[i].ToString() // "" if the member has no meta
		d.parse(meta)
		if payloads {
			var err error
			if d.Payload, err = bodies[i].AsBytes(); err != nil { // the member has no payload
				d.Payload = view.Payload{}
			}
			d.Bytes = int64(len(d.Payload))
		}
	}
	return nil
}

// parse sets the fields that the member and its meta tell.
func (d *Due) parse(meta string) {
	m := lua.ParseMember(d.member)
	d.ID = m.ID
	e, ok := lua.DecodeMeta(d.ID, meta)
	d.Malformed = !ok
	d.For = cmp.Or(e.For, m.Group)
	d.Attempt, d.MaxAttempts = e.Attempt, e.MaxAttempts
	d.Expires, d.Error, d.Headers = view.Shown(e.Expires), e.Error, e.Headers
	d.Key = e.Extra[lua.FieldKey]
	if e.ID != "" {
		d.ID = e.ID
	}
}
