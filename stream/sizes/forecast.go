package sizes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// QueueForecast is the work that a queue has now, and the work that becomes due within a time, over all its partitions.
// The figures are read one after the other, the schedule first. So a message that becomes ready meanwhile may be
// counted twice, and a message that fails meanwhile may be missed.
//
// A message that a pause, a rate or a ready limit holds back counts in Due from its due time on, as in Stats. Retries
// count in Due, and a retry for one group counts for every group. Messages of one key all count in Due until they are
// due. Then those that wait for another one count in WaitForKey. Further occurrences of a recurrence that are not
// planned yet do not count.
type QueueForecast struct {
	Queue      string      `json:"queue"`
	Partitions int         `json:"partitions"`
	At         time.Time   `json:"at"` // when it was read, by the server's clock
	Within     view.Millis `json:"within_ms"`
	Held       bool        `json:"held"`
	Flow

	Due        int64 `json:"due"`          // scheduled messages that are due at At + Within or before
	Overdue    int64 `json:"overdue"`      // of Due: due at At or before
	WaitForKey int64 `json:"wait_for_key"` // due, but another message of their key is in flight; not in Due
	Entries    int64 `json:"entries"`      // of the stream: ready, pending, and acknowledged but not freed yet

	Groups []GroupForecast `json:"groups"` // by name

	// Total is the greatest Total of Groups. Without groups it is Entries + Due.
	Total       int64 `json:"total"`
	TotalApprox bool  `json:"total_approx,omitempty"`
}

// GroupForecast is the work of one group: see QueueForecast.
type GroupForecast struct {
	Name string `json:"name"`

	// Missing: the group was asked for and does not exist. Its figures are those of a group that is created at 0.
	Missing bool `json:"missing,omitempty"`

	// Lag is the number of entries that wait for their first delivery to the group, as the server tells it. LagApprox:
	// the server does not know it, and the stream is too long to count its entries: more than 1,000, or 2 MiB, or more
	// than 16 such partitions. Lag is then the number of entries that are not pending, which is an upper bound.
	Lag       int64 `json:"lag"`
	LagApprox bool  `json:"lag_approx,omitempty"`
	Pending   int64 `json:"pending"`
	Total     int64 `json:"total"` // Lag + Pending + Due of the queue
}

// Forecast returns the work of a queue now and within a time, which is 0 to lua.MaxDelay. If group is not "", only this
// group is in Groups. In a partition that lacks a group, all entries count as its lag. An unused queue is empty, not an
// error. It takes two round trips, and one of six commands for each partition, O(log m + g) for a schedule of m members
// and g groups. Nothing grows with the backlog. If the server does not know the lag of a group, it also reads at most
// 1,000 entries and 2 MiB, in at most 16 partitions.
func Forecast(
	ctx context.Context, c rueidis.Client, prefix, queue, group string, within time.Duration,
) (QueueForecast, error) {
	err := errors.Join(lua.CheckQueue(queue), lua.Between("within", within, 0, lua.MaxDelay))
	if group != "" {
		err = errors.Join(err, lua.CheckGroup(group))
	}
	if err != nil {
		return QueueForecast{}, err
	}
	f := QueueForecast{Queue: queue, Within: view.Millis(within.Truncate(time.Millisecond)), Groups: []GroupForecast{}}
	if err := f.read(ctx, c, prefix, group); err != nil {
		return QueueForecast{}, fmt.Errorf("forecast of %s: %w", queue, err)
	}
	return f, nil
}

// read fills in the figures.
func (f *QueueForecast) read(ctx context.Context, c rueidis.Client, prefix, group string) error {
	counts, err := stream.Partitions(ctx, c, prefix, f.Queue)
	if err != nil {
		return err
	}
	at, err := view.ServerTimeOf(ctx, c, lua.NewKeys(prefix, f.Queue).Due)
	if err != nil {
		return err
	}
	f.At = at
	r := forecaster{c: c, at: at, until: at.Add(time.Duration(f.Within))}
	r.lagCounts.Store(maxLagCounts)
	parts, err := view.ReadPartitions(prefix, counts.Names(f.Queue), func(_ int, keys lua.Keys) (forecastPart, error) {
		return r.read(ctx, keys)
	})
	if err != nil {
		return err
	}
	f.Partitions = len(parts)
	f.Held, f.Flow = parts[0].settings[policy.SettingHeld] == "1", FlowOf(parts[0].settings)
	for _, part := range parts {
		f.Due += part.due
		f.Overdue += part.overdue
		f.WaitForKey += part.waitForKey
		f.Entries += part.entries
	}
	f.addGroups(parts, group)
	return nil
}

// addGroups fills in the groups and the totals.
func (f *QueueForecast) addGroups(parts []forecastPart, only string) {
	f.Total = f.Entries + f.Due
	for _, name := range groupNames(parts, only) {
		g := GroupForecast{Name: name, Missing: true}
		for _, part := range parts {
			i := slices.IndexFunc(part.groups, func(g view.GroupInfo) bool { return g.Name == name })
			if i < 0 {
				g.Lag += part.entries
				continue
			}
			g.Missing = false
			g.Lag += part.lags[i].entries
			g.LagApprox = g.LagApprox || part.lags[i].approx
			g.Pending += part.groups[i].Pending
		}
		g.Total = g.Lag + g.Pending + f.Due
		f.Groups = append(f.Groups, g)
	}
	if len(f.Groups) > 0 {
		most := slices.MaxFunc(f.Groups, func(a, b GroupForecast) int { return cmp.Compare(a.Total, b.Total) })
		f.Total, f.TotalApprox = most.Total, most.LagApprox
	}
}

// groupNames returns the names of all groups in order, or only one name if it is not "".
func groupNames(parts []forecastPart, only string) (names []string) {
	if only != "" {
		return []string{only}
	}
	for _, part := range parts {
		for _, g := range part.groups {
			names = append(names, g.Name)
		}
	}
	slices.SortFunc(names, strings.Compare)
	return slices.Compact(names)
}

// maxLagCounts is the number of partitions of a queue whose entries a forecast counts, because the server does not know
// the lag of a group.
const maxLagCounts = 16

// forecaster reads the partitions of a queue for a forecast.
type forecaster struct {
	c         rueidis.Client
	at, until time.Time
	lagCounts atomic.Int64 // partitions whose entries may still be counted
}

// forecastPart holds the figures of one partition.
type forecastPart struct {
	due, overdue, waitForKey, entries int64

	settings map[string]string
	groups   []view.GroupInfo
	lags     []groupLag // one for each group
}

func (r *forecaster) read(ctx context.Context, keys lua.Keys) (p forecastPart, err error) {
	if err := view.Ask(ctx, r.c, r.questions(keys, &p)...); err != nil {
		return p, err
	}
	approx := false
	for _, g := range p.groups {
		lag := serverLag(p.entries, g)
		approx = approx || lag.approx
		p.lags = append(p.lags, lag)
	}
	if approx && p.entries <= shortStream && r.lagCounts.Add(-1) >= 0 {
		info := view.StreamInfo{Length: p.entries, Groups: p.groups}
		p.lags, err = countLags(ctx, r.c, keys.Stream, info)
	}
	return p, err
}

// questions asks for the figures of a partition, those of the schedule first.
func (r *forecaster) questions(keys lua.Keys, p *forecastPart) []view.Question {
	b := r.c.B
	dueBy := func(at time.Time, count *int64) view.Question {
		least, most := view.ScoresBetween(time.Time{}, at.Add(time.Millisecond)) // at counts, too
		return view.Number(b().Zcount().Key(keys.Due).Min(least).Max(most).Build(), count)
	}
	return []view.Question{
		dueBy(r.until, &p.due),
		dueBy(r.at, &p.overdue),
		view.Number(b().Zcount().Key(keys.Due).Min(lua.ParkedFrom).Max(lua.ParkedTo).Build(), &p.waitForKey),
		view.Into(b().Hgetall().Key(keys.Policy).Build(), &p.settings, rueidis.RedisResult.AsStrMap),
		view.Number(b().Xlen().Key(keys.Stream).Build(), &p.entries),
		view.GroupsOf(r.c, keys.Stream, &p.groups),
	}
}
