package sizes

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// groupLag is the backlog of a group.
type groupLag struct {
	entries int64
	approx  bool
	since   time.Time // when the oldest of the entries was added, or later; zero: there is none, or it is unknown
	later   bool      // since may be later
}

// Bounds of one walk through a stream.
const (
	walkEntries = 10_000
	walkBytes   = 2 << 20
)

// shortStream is the greatest length of a stream whose entries a scrape counts if the server does not tell a lag.
const shortStream = 1000

// lags returns the backlog of each group. Stats counts entries. A glance takes the server's figures, and so does a
// scrape, except that it counts the entries of a short stream if the server does not tell a lag.
func (r *reader) lags(ctx context.Context, p *partition) ([]groupLag, error) {
	stream := view.StreamInfo{Length: p.Entries, Groups: p.infos}
	if r.depth == full {
		return countLags(ctx, r.c, p.keys.Stream, stream)
	}
	lags, approx := make([]groupLag, len(p.infos)), false
	for i, g := range p.infos {
		lags[i] = serverLag(p.Entries, g)
		approx = approx || lags[i].approx
	}
	if r.depth == glance {
		r.noteBacklogs(ctx, p, lags)
		return lags, nil
	}
	if approx && p.Entries <= shortStream && r.lagCounts > 0 {
		r.lagCounts--
		var err error
		if lags, err = countLags(ctx, r.c, p.keys.Stream, stream); err != nil {
			return nil, err
		}
	}
	for i, oldest := range p.unread {
		if len(oldest) > 0 {
			lags[i].since = lua.EntryTime(oldest[0].ID)
		}
	}
	return lags, nil
}

// serverLag returns the server's lag of a group. If the server has none, it returns an upper bound: the entries that
// are not pending.
func serverLag(entries int64, g view.GroupInfo) groupLag {
	notPending := max(0, entries-g.Pending)
	switch {
	case g.Lag < 0:
		return groupLag{entries: notPending, approx: notPending > 0}
	case g.Read < 0: // the server's lag is an estimate
		return groupLag{entries: min(g.Lag, notPending)}
	}
	return groupLag{entries: min(g.Lag, entries)}
}

// unreadQuestions asks, for a scrape, for the oldest undelivered entry of each group. It stops when the byte budget is
// spent. It takes the mean size of the partition's entries as the size of each.
func (r *reader) unreadQuestions(p *partition) questionSet {
	size := int(p.Memory["stream"] / max(1, p.Entries))
	p.unread = make([][]rueidis.XRangeSlice, len(p.infos))
	if size == 0 { // the size is unknown
		return questionSet{}
	}
	var all []view.Question
	for i := range p.details {
		g := p.infos[i]
		if g.Lag == 0 || r.unreadBytes < size {
			continue
		}
		r.unreadBytes -= size
		next := r.c.B().Xrange().Key(p.keys.Stream).Start("(" + g.Last.String()).End("+").Count(1).Build()
		all = append(all, view.Entries(next, &p.unread[i]))
	}
	return questionSet{optional: all}
}

// countLags counts, for each group, the entries after the last one that was delivered to the group. Two walks take
// turns and count for all groups: one upwards from the oldest entry, one downwards from the newest. The count of a
// group is known when either walk reaches its last delivered entry.
func countLags(ctx context.Context, c rueidis.Client, key string, s view.StreamInfo) ([]groupLag, error) {
	lags := make([]groupLag, len(s.Groups))
	uncounted := map[int]bool{} // groups
	for i, g := range s.Groups {
		lags[i] = groupLag{entries: s.Length, approx: true} // an upper bound
		if g.Lag >= 0 {
			lags[i].entries = min(g.Lag, s.Length)
		}
		uncounted[i] = true
	}
	setLag := func(i int, n int64, oldest time.Time) {
		lags[i] = groupLag{entries: min(max(0, n), s.Length), since: oldest}
		delete(uncounted, i)
	}
	nextUp, stopUp := iter.Pull2(view.Walk(ctx, c, key, "-", "+", false))
	defer stopUp()
	nextDown, stopDown := iter.Pull2(view.Walk(ctx, c, key, "-", "+", true))
	defer stopDown()
	bytes := 0
	passedDown := time.Time{} // time of the last entry that the walk downwards has passed
	for n := int64(0); len(uncounted) > 0 && n < walkEntries && bytes < walkBytes; n++ {
		low, lowErr, more := nextUp()
		high, highErr, _ := nextDown()
		if err := errors.Join(lowErr, highErr); err != nil {
			return nil, err
		}
		lowID, invalidLow := view.ParseEntryID(low.ID)
		if more && invalidLow != nil {
			return nil, invalidLow
		}
		highID, invalidHigh := view.ParseEntryID(high.ID)
		hasHigh := invalidHigh == nil // false if the stream shrank meanwhile
		for i := range uncounted {
			switch last := s.Groups[i].Last; {
			case !more:
				setLag(i, s.Length-n, time.Time{}) // all n entries of the stream are at or below last
			case lowID.Compare(last) > 0:
				setLag(i, s.Length-n, lowID.Time()) // the n entries that the walk upwards has passed are not above last
			case hasHigh && highID.Compare(last) <= 0:
				setLag(i, n, passedDown) // the n entries that the walk downwards has passed are above last
			}
		}
		if hasHigh {
			passedDown = highID.Time()
		}
		bytes += view.EntrySize(low) + view.EntrySize(high)
	}
	for i := range uncounted { // the last passed entry is in the backlog, but an older one may be, too
		lags[i].since, lags[i].later = passedDown, true
	}
	return lags, nil
}
