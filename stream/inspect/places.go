package inspect

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/deadletter"
)

// State is the state of a message in one place.
type State string

// States of a Place.
const (
	StateScheduled State = "scheduled" // for the first time, or redriven for all groups
	StateRetrying  State = "retrying"  // scheduled again for one group
	StateReady     State = "ready"     // in the stream, not yet delivered to the groups named
	StatePending   State = "pending"   // held by a consumer
	StateDead      State = "dead"
)

// Place is one place where Redis holds a message.
type Place struct {
	State     State    `json:"state"`
	Partition int      `json:"partition,omitempty"`
	Group     string   `json:"group,omitempty"`  // retrying, pending, dead
	Groups    []string `json:"groups,omitempty"` // ready: groups that were not given it yet
	// ready, pending: ID of the stream entry; dead: of the entry that failed
	Entry       string            `json:"entry,omitempty"`
	Letter      string            `json:"letter,omitempty"`    // dead: its name; see Letter
	Consumer    string            `json:"consumer,omitempty"`  // pending
	Idle        view.Millis       `json:"idle_ms,omitempty"`   // pending: since it was delivered or extended
	Held        view.Millis       `json:"held_ms,omitempty"`   // pending: since that delivery; a lower bound
	HeldSince   time.Time         `json:"held_since,omitzero"` // pending: time of that delivery; see PendingEntry
	Due         time.Time         `json:"due,omitzero"`
	Key         string            `json:"key,omitempty"`
	Waits       bool              `json:"waits_for_key,omitempty"` // due, but another message of its key is in flight
	Attempt     int               `json:"attempt"`
	MaxAttempts int               `json:"max_attempts,omitempty"`
	Expires     time.Time         `json:"expires,omitzero"`
	Error       string            `json:"error,omitempty"`  // of the last failed attempt
	Reason      string            `json:"reason,omitempty"` // dead
	Dead        time.Time         `json:"dead,omitzero"`
	Headers     map[string]string `json:"headers,omitempty"`
	Payload     view.Payload      `json:"payload"`
}

func placeOf(state State, e lua.Entry) Place {
	return Place{
		State: state, Entry: e.EntryID, Due: e.Due, Attempt: e.Attempt, MaxAttempts: e.MaxAttempts, Expires: e.Expires,
		Error:   e.Error,
		Headers: e.Headers, Payload: e.Payload, Key: e.Extra[lua.FieldKey],
	}
}

// locator looks for a message in one partition.
type locator struct {
	*finder
	queue     string
	partition int
	keys      lua.Keys

	found []Sighting // by the last look

	// The newest entry and the newest letter that were read. A second look reads only later ones: entries never change,
	// and are only appended.
	newestEntry, newestLetter string

	expected bool      // the amount to read was counted
	window   time.Time // end of its dedup window
}

// look looks in all places. It looks for retries last: in a large schedule with headers that scan takes longest.
func (l *locator) look(ctx context.Context) ([]Sighting, error) {
	l.found = nil
	if err := l.member(ctx, l.id, StateScheduled, ""); err != nil {
		return nil, err
	}
	due, metas, entries, letters, err := l.sizes(ctx)
	if err != nil {
		return nil, err
	}
	if !l.expected {
		l.expected = true
		l.step(0, min(due, metas)+entries+letters)
	}
	for _, one := range []struct {
		size   int64
		key    string
		newest *string
		found  func(context.Context, lua.Entry) error
	}{{entries, l.keys.Stream, &l.newestEntry, l.entry}, {letters, l.keys.Dead, &l.newestLetter, l.letter}} {
		if one.size == 0 {
			continue
		}
		newest, err := l.streams.all(ctx, one.key, *one.newest, func(e lua.Entry) error { return one.found(ctx, e) })
		if err != nil {
			return nil, err
		}
		*one.newest = newest
	}
	if err := l.retrying(ctx, due, metas); err != nil {
		return nil, err
	}
	slices.SortStableFunc(l.found, func(a, b Sighting) int {
		return cmp.Or(cmp.Compare(stateOrder[a.State], stateOrder[b.State]), compareEntries(a.orderedBy(), b.orderedBy()))
	})
	return l.found, nil
}

var stateOrder = map[State]int{StateReady: 1, StatePending: 1, StateDead: 2}

// orderedBy returns the entry ID that orders places of the same stateOrder; "" in the schedule.
func (s Sighting) orderedBy() string {
	if s.State == StateDead {
		_, letter, _ := deadletter.SplitLetter(s.Letter)
		return letter
	}
	return s.Entry
}

// add adds a place.
func (l *locator) add(ctx context.Context, s Sighting) {
	s.Queue, s.Partition = l.queue, l.partition
	if l.around != nil && s.Why == "" {
		s.Why = l.around.why(ctx, s)
	}
	l.found = append(l.found, s)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen != nil {
		l.seen(s)
	}
}

// sizes returns the amounts to read, and notes the dedup window.
func (l *locator) sizes(ctx context.Context) (due, metas, entries, letters int64, err error) {
	b := l.c.B
	err = view.Ask(ctx, l.c,
		view.Number(b().Zcard().Key(l.keys.Due).Build(), &due),
		view.Number(b().Hlen().Key(l.keys.Meta).Build(), &metas),
		view.Number(b().Xlen().Key(l.keys.Stream).Build(), &entries),
		view.Number(b().Xlen().Key(l.keys.Dead).Build(), &letters),
		view.Score(b().Zscore().Key(l.keys.Seen).Member(l.id).Build(), &l.window))
	return due, metas, entries, letters, err
}

// member adds the place of one member of the schedule, if it exists.
func (l *locator) member(ctx context.Context, member string, state State, group string) error {
	score := math.NaN()
	var payload []byte
	var meta string
	err := view.Ask(ctx, l.c,
		view.Into(l.c.B().Zscore().Key(l.keys.Due).Member(member).Build(), &score, rueidis.RedisResult.AsFloat64),
		view.Into(l.c.B().Hget().Key(l.keys.Payload).Field(member).Build(), &payload, rueidis.RedisResult.AsBytes),
		view.Into(l.c.B().Hget().Key(l.keys.Meta).Field(member).Build(), &meta, rueidis.RedisResult.ToString))
	if err != nil || math.IsNaN(score) { // it does not exist
		return err
	}
	e, _ := lua.DecodeMeta(l.id, meta) // an unreadable one is dead-lettered when it is due
	place := placeOf(state, e)
	_, place.Waits = lua.DueScore(score)
	place.Due, place.Group = view.ScoreTime(score), group
	place.Payload = payload
	if payload == nil {
		place.Payload = view.Payload{}
	}
	l.add(ctx, Sighting{Place: place, Before: lua.ParseMember(member).Of})
	return nil
}

// retrying looks for retries of the message in the schedule. Each retry has meta, so it scans the schedule or the meta,
// whichever is smaller.
func (l *locator) retrying(ctx context.Context, due, metas int64) error {
	if min(due, metas) == 0 {
		return nil
	}
	seen := map[string]bool{} // a scan may return a member twice
	looked := int64(0)
	for cursor := uint64(0); ; {
		page, err := l.scan(ctx, due < metas, cursor)
		if err != nil {
			return err
		}
		l.step(min(scanCount, min(due, metas)-looked), 0)
		looked = min(looked+scanCount, min(due, metas))
		for i := 0; i+1 < len(page.Elements); i += 2 {
			member := page.Elements[i]
			m := lua.ParseMember(member)
			if m.Kind == lua.MemberFirst || seen[member] {
				continue
			}
			seen[member] = true
			state := StateRetrying
			if m.Group == "" { // redriven for all groups
				state = StateScheduled
			}
			if err := l.member(ctx, member, state, m.Group); err != nil {
				return err
			}
		}
		if cursor = page.Cursor; cursor == 0 {
			return nil
		}
	}
}

const scanCount = 1000

// scan scans a part of the schedule, or of the meta.
func (l *locator) scan(ctx context.Context, schedule bool, cursor uint64) (page rueidis.ScanEntry, err error) {
	pattern := view.EscapeGlob(l.id) + lua.Separator + "*"
	scan := l.c.B().Hscan().Key(l.keys.Meta).Cursor(cursor).Match(pattern).Count(scanCount).Build
	if schedule {
		scan = l.c.B().Zscan().Key(l.keys.Due).Cursor(cursor).Match(pattern).Count(scanCount).Build
	}
	err = view.AskLong(ctx, l.c, view.Scan(scan(), &page))
	return page, err
}

// entry adds the places of a stream entry: not yet delivered to some groups, or held by a consumer.
func (l *locator) entry(ctx context.Context, e lua.Entry) error {
	at, err := view.ParseEntryID(e.EntryID)
	if err != nil {
		return err
	}
	info, err := view.ReadStream(ctx, l.c, l.keys.Stream)
	if err != nil {
		return err
	}
	ready, waiting := placeOf(StateReady, e), []view.GroupInfo(nil)
	for _, g := range info.Groups {
		if e.For != "" && e.For != g.Name {
			continue // a retry for another group
		}
		if at.Compare(g.Last) > 0 {
			ready.Groups, waiting = append(ready.Groups, g.Name), append(waiting, g)
			continue
		}
		if err := l.held(ctx, e, g.Name); err != nil {
			return err
		}
	}
	if len(ready.Groups) > 0 || len(info.Groups) == 0 {
		s := Sighting{Place: ready, For: e.For}
		if l.around != nil {
			s.Queue = l.queue
			s.Why = l.around.whyReady(ctx, l.keys.Stream, waiting, s)
		}
		l.add(ctx, s)
	}
	return nil
}

// held adds the place of an entry that a consumer of a group holds, if any.
func (l *locator) held(ctx context.Context, e lua.Entry, group string) error {
	list, err := view.ReadPending(ctx, l.c, l.keys.Stream, group, view.PendingRange{From: e.EntryID, To: e.EntryID, Count: 1})
	if errors.Is(err, lua.ErrNoGroup) || err == nil && len(list) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	now, err := view.ServerTimeOf(ctx, l.c, l.keys.Stream)
	if err != nil {
		return err
	}
	notes, err := view.ReadHeldNotes(ctx, l.c, l.keys, group)
	if err != nil {
		return err
	}
	p := pendingEntryOf(l.partition, list[0], notes, now)
	place := placeOf(StatePending, e)
	place.Group, place.Consumer, place.Idle, place.Held, place.HeldSince = group, p.Consumer, p.Idle, p.Held, p.HeldSince
	l.add(ctx, Sighting{Place: place, For: e.For, Deliveries: p.Deliveries, Cancelled: p.Cancelled})
	return nil
}

func (l *locator) letter(ctx context.Context, e lua.Entry) error {
	place := placeOf(StateDead, e)
	place.Letter, place.Entry, place.Group, place.Reason, place.Dead = deadletter.LetterName(l.partition, e.EntryID), e.Entry,
		e.Group, e.Reason, e.Dead
	l.add(ctx, Sighting{Place: place})
	return nil
}
