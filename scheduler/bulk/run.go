package bulk

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Bounds of one request.
const (
	scanMembers   = 1000
	changeMembers = 250
	readHeaders   = 100

	// fresh is how long the data that a message was selected by counts as current; a rate may delay its change by
	// minutes.
	fresh = 50 * time.Millisecond
)

// run is one bulk change.
type run struct {
	b       *Bulk
	queue   string
	filter  Filter
	options Options
	pace    loop.Pace
	result  Result

	change func(ctx context.Context, k lua.Keys, ms []Message) ([]outcome, error)
	target func(Message) time.Time // the new due time; nil = it does not change
	event  observe.Event
	told   bool

	wanted map[string]bool // the IDs of the filter; true = found
}

// everywhere walks all partitions of the queue, including partitions that are added meanwhile.
func (r *run) everywhere(ctx context.Context) error {
	if len(r.filter.IDs) > 0 {
		r.wanted = make(map[string]bool, len(r.filter.IDs))
		for _, id := range r.filter.IDs {
			r.wanted[id] = false
		}
	}
	var before lua.Counts
	for {
		counts, err := view.ReadCounts(ctx, r.b.client, r.b.prefix, r.queue)
		if err != nil {
			return err
		}
		if before != nil && counts.Latest() == before.Latest() {
			break
		}
		if r.filter.looksUp() {
			err = r.lookUp(ctx, counts, before)
		} else {
			err = r.walkAll(ctx, counts, before)
		}
		if err != nil {
			return err
		}
		before = counts
	}
	for _, id := range r.filter.IDs {
		if found, wanted := r.wanted[id]; wanted && !found {
			r.wanted[id] = true // an ID may be named twice
			r.miss(Message{ID: id}, gone)
		}
	}
	return nil
}

// walkAll walks the schedules of partitions that earlier counts lack.
func (r *run) walkAll(ctx context.Context, counts, before lua.Counts) error {
	first := 0
	if before != nil {
		first = before.Latest()
	}
	sizes := make([]int64, counts.Latest())
	for i := first; i < len(sizes); i++ {
		size := view.Number(r.b.client.B().Zcard().Key(r.keys(i).Due).Build(), &sizes[i])
		if err := view.Ask(ctx, r.b.client, size); err != nil {
			return err
		}
		r.result.Total += sizes[i]
	}
	for i := first; i < len(sizes); i++ {
		looked, err := r.result.Looked, error(nil)
		for w := (lua.MoveWait{}); ; {
			if err = r.walk(ctx, i, sizes[i]); !w.Again(ctx, err) {
				break
			}
			r.result.Looked = looked // another server does not know the cursor
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *run) keys(partition int) lua.Keys {
	return lua.NewKeys(r.b.prefix, lua.PartitionName(r.queue, partition)).As(lua.Actor(lua.ActorOperator))
}

// walk walks one schedule, of about size members. It meets every member that is there from its beginning to its end. A
// cursor is only valid in the server process that made it, so the walk uses one connection, and ends with it.
func (r *run) walk(ctx context.Context, partition int, size int64) error {
	conn, release := lua.Pin(r.b.client)
	defer release()
	k, cursor, looked := r.keys(partition), uint64(0), r.result.Looked
	step := int64(r.pace.Batch(scanMembers/10) * 10) // about a second's worth; a short schedule is read at once
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		var page rueidis.ScanEntry
		scan := conn.B().Zscan().Key(k.Due).Cursor(cursor).Match(r.filter.pattern()).Count(step).Build()
		if err := view.AskLong(ctx, conn, view.Scan(scan, &page)); err != nil {
			return err
		}
		r.result.Looked = min(r.result.Looked+step, looked+size)
		var found []Message
		for i := 0; i+1 < len(page.Elements); i += 2 {
			if m, meant := r.judge(partition, page.Elements[i], page.Elements[i+1]); meant {
				found = append(found, m)
			}
		}
		if err := r.take(ctx, k, found); err != nil {
			return err
		}
		if cursor = page.Cursor; cursor == 0 {
			r.result.Looked = looked + size
			return nil
		}
	}
}

// judge makes a Message of a member, and reports whether it matches the filter, apart from headers.
func (r *run) judge(partition int, member, score string) (Message, bool) {
	number, _ := strconv.ParseFloat(score, 64)
	parsed := lua.ParseMember(member)
	m := Message{ID: parsed.ID, Group: parsed.Group, Due: view.ScoreTime(number), Partition: partition, member: member}
	if r.wanted != nil {
		if _, wanted := r.wanted[m.ID]; !wanted {
			return m, false
		}
	}
	return m, r.filter.matches(parsed, m.Due)
}

// lookUp looks messages up by their IDs in every partition, because a message with a key is in the partition of its
// key. It leaves out the partitions of earlier counts.
func (r *run) lookUp(ctx context.Context, counts, before lua.Counts) error {
	first := 0
	if before != nil {
		first = before.Latest()
	}
	var ids []string
	named := make(map[string]bool, len(r.filter.IDs))
	for _, id := range r.filter.IDs {
		if !named[id] {
			named[id] = true
			ids = append(ids, id)
		}
	}
	r.result.Total += int64(len(ids) * (counts.Latest() - first))
	for partition := first; partition < counts.Latest(); partition++ {
		k := r.keys(partition)
		for ids := range slices.Chunk(ids, r.pace.Batch(scanMembers/10)*10) {
			if err := ctx.Err(); err != nil {
				return err
			}
			scores, err := r.scores(ctx, k, ids)
			if err != nil {
				return err
			}
			r.result.Looked += int64(len(ids))
			var found []Message
			for i, score := range scores {
				if score == nil {
					continue
				}
				if m, meant := r.judge(partition, ids[i], strconv.FormatFloat(*score, 'f', -1, 64)); meant {
					found = append(found, m)
				} else {
					r.wanted[m.ID] = true // it exists, but does not match
				}
			}
			if err := r.take(ctx, k, found); err != nil {
				return err
			}
		}
	}
	return nil
}

// scores returns the scores of members; nil = there is no such member.
func (r *run) scores(ctx context.Context, k lua.Keys, ids []string) ([]*float64, error) {
	scores := make([]*float64, len(ids))
	questions := make([]view.Question, len(ids))
	for i, id := range ids {
		questions[i] = view.Into(r.b.client.B().Zscore().Key(k.Due).Member(id).Build(), &scores[i],
			func(reply rueidis.RedisResult) (*float64, error) {
				score, err := reply.AsFloat64()
				return &score, err
			})
	}
	return scores, view.AskLong(ctx, r.b.client, questions...)
}

// take changes the messages that have the filter's headers. They are all of one partition.
func (r *run) take(ctx context.Context, k lua.Keys, found []Message) error {
	read := time.Now()
	if len(r.filter.Headers) > 0 {
		var err error
		if found, err = r.withHeaders(ctx, k, found); err != nil {
			return err
		}
	}
	var due []Message
	for _, m := range found {
		if r.wanted != nil {
			r.wanted[m.ID] = true
		}
		if r.target != nil && m.Due.Equal(r.target(m)) {
			r.result.Unchanged++
			continue
		}
		if r.options.Selected != nil {
			r.options.Selected(m)
		}
		due = append(due, m)
	}
	if r.options.DryRun {
		r.result.Changed += len(due)
		r.progress()
		return nil
	}
	for ms := range slices.Chunk(due, r.pace.Batch(changeMembers)) {
		if err := r.makeChange(ctx, k, ms, read); err != nil {
			return err
		}
	}
	r.progress()
	return nil
}

// stillMeant reads messages again and returns those that still match. It counts the others as gone: they were moved, or
// replaced by another message of the same ID.
func (r *run) stillMeant(ctx context.Context, k lua.Keys, ms []Message) (still []Message, err error) {
	scores, err := r.scores(ctx, k, members(ms))
	if err != nil {
		return nil, err
	}
	for i, score := range scores {
		if score == nil {
			continue
		}
		if m, meant := r.judge(ms[i].Partition, ms[i].member, strconv.FormatFloat(*score, 'f', -1, 64)); meant {
			still = append(still, m)
		}
	}
	if len(r.filter.Headers) > 0 {
		if still, err = r.withHeaders(ctx, k, still); err != nil {
			return nil, err
		}
	}
	for _, m := range ms {
		if !slices.ContainsFunc(still, func(other Message) bool { return other.member == m.member }) {
			r.miss(m, gone)
		}
	}
	return still, nil
}

// withHeaders returns the messages that have the filter's headers.
func (r *run) withHeaders(ctx context.Context, k lua.Keys, found []Message) (with []Message, err error) {
	for ms := range slices.Chunk(found, readHeaders) {
		metas := make([]string, len(ms))
		questions := make([]view.Question, len(ms))
		for i, m := range ms {
			get := r.b.client.B().Hget().Key(k.Meta).Field(m.member).Build()
			questions[i] = view.Into(get, &metas[i], rueidis.RedisResult.ToString)
		}
		if err := view.AskLong(ctx, r.b.client, questions...); err != nil {
			return nil, err
		}
		for i, m := range ms {
			e, readable := lua.DecodeMeta(m.ID, metas[i])
			if readable && r.filter.hasHeaders(e.Headers) {
				with = append(with, m)
			} else if r.wanted != nil {
				r.wanted[m.ID] = true // it exists, but does not match
			}
		}
	}
	return with, nil
}

// makeChange changes messages in one call. It waits for the reply even if ctx ends, so that the counts are right. read
// is the time at which the messages were read.
func (r *run) makeChange(ctx context.Context, k lua.Keys, ms []Message, read time.Time) (err error) {
	if !r.pace.Wait(ctx, len(ms)) {
		return ctx.Err()
	}
	if r.filter.mayCease() && time.Since(read) > fresh {
		if ms, err = r.stillMeant(ctx, k, ms); err != nil || len(ms) == 0 {
			return err
		}
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), loop.PassTimeout)
	defer cancel()
	done, err := r.change(call, k, ms)
	if err != nil {
		if len(done) > 0 || lua.Ambiguous(err) {
			err = fmt.Errorf("of the last %d some may be done: %w", len(ms), err)
		}
		return err
	}
	for i, what := range done {
		switch what {
		case changed:
			r.result.Changed++
		case unchanged:
			r.result.Unchanged++
		default:
			r.miss(ms[i], what)
		}
	}
	r.progress()
	return nil
}

// miss counts a message that is gone or could not be changed.
func (r *run) miss(m Message, what outcome) {
	if what == refused {
		r.result.Refused++
	} else {
		r.result.Gone++
	}
	if r.options.Missed != nil {
		r.options.Missed(m)
	}
}

func (r *run) progress() {
	if r.options.Progress != nil {
		r.options.Progress(r.result)
	}
}
