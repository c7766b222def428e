package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// This file holds the tab of partitions, and the tab that deletes the queue.

// partitionsView is the data of the tab of partitions.
type partitionsView struct {
	Counts  admin.PartitionCounts
	Now     int
	Parts   []admin.PartitionStats
	Wanted  int  // the viewer asks to grow to so many partitions; 0 = shows the form
	Keyed   bool // the growth was refused because of messages with a key
	Limits  []partitionLimit
	Settled bool // the queue has the wanted number already
}

// partitionLimit is a limit that counts in each partition, before and after the growth.
type partitionLimit struct{ Word, Each, Before, After string }

// longTimeout bounds a growth and a deletion, which take longer than other requests.
const longTimeout = time.Minute

// long returns a context for a change that goes on if the viewer leaves. Shutdown ends it. The caller defers end.
func (q *request) long() (ctx context.Context, end context.CancelFunc) {
	_ = http.NewResponseController(q.w).SetWriteDeadline(time.Now().Add(2 * longTimeout))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.ctx), longTimeout)
	stop := context.AfterFunc(q.cutting, cancel)
	return ctx, func() { stop(); cancel() }
}

func showPartitions(q *request, _ queueState) (any, error) {
	counts, err := q.op.Partitions(q.ctx, q.queue())
	if err != nil {
		return nil, err
	}
	v := partitionsView{Counts: counts, Now: counts.Latest(), Keyed: errors.Is(q.problem, admin.ErrKeyed)}
	stats, err := q.op.Stats(q.ctx, q.queue())
	if err != nil {
		return nil, err
	}
	if v.Parts = stats.ByPartition; v.Parts == nil {
		one := admin.PartitionStats{Scheduled: stats.Scheduled, Overdue: stats.Overdue, Ready: stats.Ready,
			ReadyApprox: stats.ReadyApprox, Entries: stats.Entries, Dead: stats.Dead}
		if bytes := stats.MemoryBytes(); bytes >= 0 {
			one.Memory = &bytes
		}
		for _, g := range stats.Groups {
			one.Pending += g.Pending
		}
		v.Parts = []admin.PartitionStats{one}
	}
	if !q.query.Has("partitions") || !q.may(access.Operate, q.queue()) {
		return v, nil
	}
	wanted, err := wantedPartitions(q.query.Get("partitions"), v.Now)
	if err != nil {
		if q.problem == nil {
			q.problem = err
		}
		return v, nil
	}
	v.Wanted, v.Settled = wanted, wanted == v.Now
	v.Limits = partitionLimits(stats.Policy, v.Now, wanted)
	return v, nil
}

// wantedPartitions reads the wanted number, which is at least the present one.
func wantedPartitions(text string, now int) (int, error) {
	wanted, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return 0, lua.Invalid("partitions", text, "must be a whole number")
	}
	if err := lua.CheckPartitions(wanted); err != nil {
		return 0, err
	}
	if wanted < now {
		return 0, lua.Invalid("partitions", text, "must be at least %d: a queue never shrinks", now)
	}
	return wanted, nil
}

// partitionLimits returns the limits of the policy that count in each partition.
func partitionLimits(p bridge.Policy, before, after int) (limits []partitionLimit) {
	add := func(word, unit string, each int) {
		if each > 0 {
			limits = append(limits, partitionLimit{word, number(each) + unit, number(each*before) + unit,
				number(each*after) + unit})
		}
	}
	count, unit, _ := strings.Cut(string(p.Rate), "/")
	if each, err := strconv.Atoi(count); err == nil {
		add("rate", "/"+unit, each)
	}
	add("burst", "", p.Burst)
	add("ready_limit", "", p.ReadyLimit)
	add("history", "", p.History)
	return limits
}

// growQueue is the action of the confirmation.
func growQueue(q *request) (done, error) {
	q.query.Set("tab", "partitions")
	counts, err := q.op.Partitions(q.ctx, q.queue())
	if err != nil {
		return done{}, err
	}
	wanted, err := wantedPartitions(q.query.Get("partitions"), counts.Latest())
	if err != nil {
		return done{}, err
	}
	ctx, end := q.long()
	defer end()
	grow := q.op.SetPartitions
	if q.query.Get("despite") == "keys" {
		grow = q.op.SetPartitionsDespiteKeys
	}
	counts, err = grow(ctx, q.queue(), wanted, nil)
	if err != nil {
		return done{}, err
	}
	page, err := href("queue", "queue", q.queue(), "tab", "partitions")
	text := fmt.Sprintf("%s has %s now. Producers, bridges and workers use them within seconds.", q.queue(),
		plural(counts.Latest(), "partition", "partitions"))
	return done{notice: text, page: page}, err
}

// deleteView is the data of the tab that deletes the queue.
type deleteView struct{ NotEmpty bool }

func showDelete(q *request, _ queueState) (any, error) {
	return deleteView{errors.Is(q.problem, admin.ErrNotEmpty) || q.query.Get("force") == "yes"}, nil
}

// deleteQueue is the action of the form. The viewer has typed the queue's name.
func deleteQueue(q *request) (done, error) {
	q.query.Set("tab", "delete")
	if err := q.confirmed(q.queue()); err != nil {
		return done{}, err
	}
	ctx, end := q.long()
	defer end()
	contents, err := q.op.DeleteQueue(ctx, q.queue(), q.query.Get("force") == "yes")
	if errors.Is(err, admin.ErrNotEmpty) {
		return done{}, fmt.Errorf("%w: it holds %s. Nothing was deleted", admin.ErrNotEmpty, cut(contents.String(), 500))
	}
	if err != nil {
		return done{}, err
	}
	text := q.queue() + " was deleted."
	if !contents.Empty() {
		text = fmt.Sprintf("%s was deleted, with %s.", q.queue(), cut(contents.String(), 500))
	}
	if len(contents.Readers) > 0 {
		text += " These workers still read, and create the queue again: " +
			cut(visible(strings.Join(contents.Readers, ", ")), 300)
	}
	return done{notice: text, page: "./"}, nil
}
