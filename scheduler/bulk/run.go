package bulk

import (
	"context"
	"fmt"
	"maps"
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

	// fresh is how long the data by which a message was selected counts as current. If a rate delays the change for
	// longer, the data is read again.
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
	// isDone reports, for a dry run, whether a message with this meta needs no change; nil = each one needs it
	isDone func(m Message, meta string, now time.Time) bool
	event  observe.Event
	told   bool

	wanted map[string]bool // ID of the filter → the ID was found; nil = the filter has no IDs
}

// everywhere walks all partitions of the queue, including partitions that are added meanwhile.
func (r *run) everywhere(ctx context.Context) error {
	if len(r.filter.Messages) > 0 {
		return r.takeMessages(ctx)
	}
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
		if r.filter.allByID() {
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

// takeMessages changes those of the filter's messages that still match.
func (r *run) takeMessages(ctx context.Context) error {
	byPartition := map[int][]Message{}
	for _, m := range r.filter.Messages {
		byPartition[m.Partition] = append(byPartition[m.Partition], m)
	}
	r.result.Total = int64(len(r.filter.Messages))
	for _, partition := range slices.Sorted(maps.Keys(byPartition)) {
		k := r.keys(partition)
		for ms := range slices.Chunk(byPartition[partition], r.pace.Batch(changeMembers)) {
			read := time.Now()
			still, err := r.stillMatching(ctx, k, ms)
			if err == nil {
				r.result.Looked += int64(len(ms))
				err = r.changeAll(ctx, k, still, read)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// walkAll walks the schedules of the partitions of counts, except those of before, which were walked already.
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
			r.result.Looked = looked // the walk starts over, because the new server does not know the cursor
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *run) keys(partition int) lua.Keys {
	return lua.NewKeys(r.b.prefix, lua.PartitionName(r.queue, partition)).As(r.b.by)
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

// judge makes a Message of a member, and reports whether the message matches the filter, apart from headers.
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

// lookUp looks messages up by their IDs in every partition, because a message with an ordering key is in the partition
// of that key. It leaves out the partitions of before, which were read already.
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
					r.wanted[m.ID] = true // the message exists, but does not match
				}
			}
			if err := r.take(ctx, k, found); err != nil {
				return err
			}
		}
	}
	return nil
}

// scores returns the scores of members, with nil for a member that does not exist.
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

// take changes those of the found messages that have the filter's headers and texts. All are of one partition.
func (r *run) take(ctx context.Context, k lua.Keys, found []Message) error {
	read := time.Now()
	found, err := r.withContent(ctx, k, found)
	if err != nil {
		return err
	}
	return r.changeAll(ctx, k, found, read)
}

// changeAll changes messages of one partition. read is the time at which they were read.
func (r *run) changeAll(ctx context.Context, k lua.Keys, matching []Message, read time.Time) error {
	var selected []Message
	for _, m := range matching {
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
		selected = append(selected, m)
	}
	if r.options.DryRun {
		return r.foreseeAll(ctx, k, selected)
	}
	for ms := range slices.Chunk(selected, r.pace.Batch(changeMembers)) {
		if err := r.makeChange(ctx, k, ms, read); err != nil {
			return err
		}
	}
	r.progress()
	return nil
}

// stillMatching reads messages again and returns those that still match. It counts the others as gone: they became
// ready, were cancelled or moved, or were replaced by another message with the same ID.
func (r *run) stillMatching(ctx context.Context, k lua.Keys, ms []Message) (still []Message, err error) {
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
	if still, err = r.withContent(ctx, k, still); err != nil {
		return nil, err
	}
	for _, m := range ms {
		if !slices.ContainsFunc(still, func(other Message) bool { return other.member == m.member }) {
			r.miss(m, gone)
		}
	}
	return still, nil
}

// withContent returns the messages that have the filter's headers and texts.
func (r *run) withContent(ctx context.Context, k lua.Keys, found []Message) (with []Message, err error) {
	with = found
	if len(r.filter.Headers) > 0 {
		if with, err = r.withHeaders(ctx, k, with); err != nil {
			return nil, err
		}
	}
	if r.filter.hasTexts() && len(with) > 0 {
		with, err = r.withTexts(ctx, k, with)
	}
	return with, err
}

// withTexts returns the messages that have the filter's texts.
func (r *run) withTexts(ctx context.Context, k lua.Keys, found []Message) (with []Message, err error) {
	have := make(map[string]bool, len(found))
	for ms := range slices.Chunk(found, changeMembers) {
		for s := lua.LookDue(members(ms), changeMembers); !s.Done; {
			var some []lua.FoundDue
			call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
			s, some, err = lua.SearchDue(call, r.b.client, k, r.filter.texts(), s)
			cancel()
			if err != nil {
				return nil, err
			}
			for _, one := range some {
				have[one.Member] = true
			}
		}
	}
	for _, m := range found {
		if have[m.member] {
			with = append(with, m)
		} else if r.wanted != nil {
			r.wanted[m.ID] = true // the message exists, but does not match
		}
	}
	return with, nil
}

// withHeaders returns the messages that have the filter's headers.
func (r *run) withHeaders(ctx context.Context, k lua.Keys, found []Message) (with []Message, err error) {
	for ms := range slices.Chunk(found, readHeaders) {
		metas, err := r.metas(ctx, k, ms)
		if err != nil {
			return nil, err
		}
		for i, m := range ms {
			e, readable := lua.DecodeMeta(m.ID, metas[i])
			if readable && r.filter.hasHeaders(e.Headers) {
				with = append(with, m)
			} else if r.wanted != nil {
				r.wanted[m.ID] = true // the message exists, but does not match
			}
		}
	}
	return with, nil
}

// metas returns the metas of messages, with "" for a message without one.
func (r *run) metas(ctx context.Context, k lua.Keys, ms []Message) ([]string, error) {
	metas := make([]string, len(ms))
	questions := make([]view.Question, len(ms))
	for i, m := range ms {
		get := r.b.client.B().Hget().Key(k.Meta).Field(m.member).Build()
		questions[i] = view.Into(get, &metas[i], rueidis.RedisResult.ToString)
	}
	return metas, view.AskLong(ctx, r.b.client, questions...)
}

// foreseeAll counts, for a dry run, the outcomes that a change of the messages would have.
func (r *run) foreseeAll(ctx context.Context, k lua.Keys, selected []Message) error {
	for ms := range slices.Chunk(selected, readHeaders) {
		unchanged := 0
		if r.isDone != nil {
			metas, err := r.metas(ctx, k, ms)
			if err != nil {
				return err
			}
			now, err := view.ServerTimeOf(ctx, r.b.client, k.Due)
			if err != nil {
				return err
			}
			for i, m := range ms {
				if r.isDone(m, metas[i], now) {
					unchanged++
				}
			}
		}
		r.result.Unchanged += unchanged
		r.result.Changed += len(ms) - unchanged
	}
	r.progress()
	return nil
}

// makeChange changes messages in one call. It waits for the reply even if ctx ends, so that the counts are right. read
// is the time at which the messages were read.
func (r *run) makeChange(ctx context.Context, k lua.Keys, ms []Message, read time.Time) (err error) {
	if !r.pace.Wait(ctx, len(ms)) {
		return ctx.Err()
	}
	if r.filter.dependsOnContent() && time.Since(read) > fresh {
		if ms, err = r.stillMatching(ctx, k, ms); err != nil || len(ms) == 0 {
			return err
		}
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), loop.PassTimeout)
	defer cancel()
	done, err := r.change(call, k, ms)
	if err != nil {
		if len(done) > 0 || lua.Ambiguous(err) {
			err = fmt.Errorf("some of the last %d messages may be changed: %w", len(ms), err)
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
