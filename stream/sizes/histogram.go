package sizes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Histogram is the number of members of a queue's schedule in each of several spans of due times, over all partitions.
// Bar i counts the members that are due at From + i × Step or later, and before From + (i+1) × Step. Each member of the
// schedule is counted once in Before, Bars, Later and WaitForKey together. The counts are taken one after the other. A
// member with a score of 8 × 10^15 or more, which only another program writes, is not counted.
type Histogram struct {
	At         time.Time   `json:"at"` // when it was counted, by the server's clock
	From       time.Time   `json:"from"`
	Step       view.Millis `json:"step_ms"`
	Bars       []int64     `json:"bars"`
	Overdue    int64       `json:"overdue"` // due at At or before; also counted in Before, or in a bar
	Before     int64       `json:"before"`  // due before the first bar
	Later      int64       `json:"later"`   // due after the last bar
	WaitForKey int64       `json:"wait_for_key"`
}

// MaxBars is the greatest number of bars of a Histogram.
const MaxBars = 200

// latestBar is the end of the times that a Histogram may cover: JSON cannot express later times.
var latestBar = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)

// Bar returns the span of bar i. Before has the spans below 0, and Later those from len(Bars) on.
func (h Histogram) Bar(i int) (from, until time.Time) {
	step := time.Duration(h.Step).Milliseconds()
	from = time.UnixMilli(h.From.UnixMilli() + int64(i)*step)
	return from, time.UnixMilli(from.UnixMilli() + step)
}

// DueHistogram counts the members of a queue's schedule by their due times. From is rounded down to milliseconds, and
// so is step, which is at least one. The last bar ends before the year 10000. For each partition it takes one round
// trip of bars + 4 commands, each O(log m) for a schedule of m members.
func DueHistogram(ctx context.Context, c rueidis.Client, prefix, queue string, from time.Time, step time.Duration,
	bars int) (Histogram, error) {
	h := Histogram{From: from.Truncate(time.Millisecond), Step: view.Millis(step.Truncate(time.Millisecond))}
	err := errors.Join(lua.CheckQueue(queue), lua.Between("step", step, time.Millisecond, lua.MaxDelay),
		lua.Between("bars", bars, 1, MaxBars))
	if err == nil {
		err = h.checkFrom(bars)
	}
	if err != nil {
		return Histogram{}, err
	}
	h.Bars = make([]int64, bars)
	if err := h.count(ctx, c, prefix, queue); err != nil {
		return Histogram{}, fmt.Errorf("count due times of %s: %w", queue, err)
	}
	return h, nil
}

// checkFrom returns an error if bars bars would begin before 1970 or end after latestBar.
func (h *Histogram) checkFrom(bars int) error {
	if _, end := h.Bar(bars - 1); h.From.UnixMilli() < 0 || end.After(latestBar) {
		return lua.Invalid("from", h.From.Format(time.RFC3339), "the bars must be within the years 1970 to 9999")
	}
	return nil
}

// count fills in the counts.
func (h *Histogram) count(ctx context.Context, c rueidis.Client, prefix, queue string) (err error) {
	counts, err := stream.Partitions(ctx, c, prefix, queue)
	if err != nil {
		return err
	}
	if h.At, err = view.ServerTimeOf(ctx, c, lua.NewKeys(prefix, queue).Due); err != nil {
		return err
	}
	parts, err := view.ReadPartitions(prefix, counts.Names(queue), func(_ int, keys lua.Keys) (Histogram, error) {
		part := Histogram{At: h.At, From: h.From, Step: h.Step, Bars: make([]int64, len(h.Bars))}
		return part, view.Ask(ctx, c, part.questions(c, keys.Due)...)
	})
	if err != nil {
		return err
	}
	for _, part := range parts {
		h.add(part)
	}
	return nil
}

// questions asks for the counts of one partition.
func (h *Histogram) questions(c rueidis.Client, due string) []view.Question {
	between := func(from, until time.Time, count *int64) view.Question {
		least, most := view.ScoresBetween(from, until)
		return view.Number(c.B().Zcount().Key(due).Min(least).Max(most).Build(), count)
	}
	_, end := h.Bar(len(h.Bars) - 1)
	all := []view.Question{
		between(time.Time{}, h.At.Add(time.Millisecond), &h.Overdue),
		between(time.Time{}, h.From, &h.Before),
		between(end, time.Time{}, &h.Later),
		view.Number(c.B().Zcount().Key(due).Min(lua.ParkedFrom).Max(lua.ParkedTo).Build(), &h.WaitForKey),
	}
	for i := range h.Bars {
		from, until := h.Bar(i)
		all = append(all, between(from, until, &h.Bars[i]))
	}
	return all
}

// add adds the counts of another partition.
func (h *Histogram) add(part Histogram) {
	h.Overdue += part.Overdue
	h.Before += part.Before
	h.Later += part.Later
	h.WaitForKey += part.WaitForKey
	for i, n := range part.Bars {
		h.Bars[i] += n
	}
}
