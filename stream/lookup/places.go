package lookup

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
	StateScheduled State = "scheduled" // scheduled for the first time, or redriven for all groups
	StateRetrying  State = "retrying"  // scheduled again for one group
	StateReady     State = "ready"     // in the stream, and not yet delivered to the groups in Groups
	StatePending   State = "pending"   // held by a consumer
	StateDead      State = "dead"
)

// Place is one place where Redis holds a message.
type Place struct {
	State     State    `json:"state"`
	Partition int      `json:"partition,omitempty"`
	Group     string   `json:"group,omitempty"`  // retrying, pending, dead
	Groups    []string `json:"groups,omitempty"` // ready: groups that were not given the entry yet
	// ready, pending: ID of the stream entry; dead: ID of the entry that failed
	Entry       string            `json:"entry,omitempty"`
	Letter      string            `json:"letter,omitempty"`    // dead: the letter's name; see deadletter.Letter
	Consumer    string            `json:"consumer,omitempty"`  // pending
	Idle        view.Millis       `json:"idle_ms,omitempty"`   // pending: since the entry was delivered or extended
	Held        view.Millis       `json:"held_ms,omitempty"`   // pending: since HeldSince; a lower bound
	HeldSince   time.Time         `json:"held_since,omitzero"` // pending: time of the delivery; see sizes.PendingEntry
	Due         time.Time         `json:"due,omitzero"`
	Key         string            `json:"key,omitempty"`           // ordering key
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
		State: state, Entry: e.EntryID, Due: view.Shown(e.Due), Attempt: e.Attempt, MaxAttempts: e.MaxAttempts,
		Expires: view.Shown(e.Expires),
		Error:   e.Error, Headers: e.Headers, Payload: e.Payload, Key: e.Extra[lua.FieldKey],
	}
}

// locator looks for a message in one partition.
type locator struct {
	*finder
	queue     string
	partition int
	keys      lua.Keys

	found []Sighting // by the last call of locate

	// IDs of the newest entry and the newest letter that were searched. A second call searches only later ones, because
	// entries never change, and new entries are only appended.
	newestEntry, newestLetter string

	isCounted bool      // the items to read are part of the finder's total
	window    time.Time // end of the message's dedup window
}

// locate looks in all places of the partition. It looks for retries last, because the scan for them takes longest in a
// large schedule with headers.
func (l *locator) locate(ctx context.Context) ([]Sighting, error) {
	l.found = nil
	if err := l.addMember(ctx, l.id, StateScheduled, ""); err != nil {
		return nil, err
	}
	due, metas, entries, letters, err := l.sizes(ctx)
	if err != nil {
		return nil, err
	}
	if !l.isCounted {
		l.isCounted = true
		l.addProgress(0, min(due, metas)+entries+letters)
	}
	if entries > 0 {
		if l.newestEntry, err = l.eachEntry(ctx, l.keys.Stream, l.newestEntry, l.addEntry); err != nil {
			return nil, err
		}
	}
	if letters > 0 {
		if l.newestLetter, err = l.eachEntry(ctx, l.keys.Dead, l.newestLetter, l.addLetter); err != nil {
			return nil, err
		}
	}
	if err := l.addRetries(ctx, due, metas); err != nil {
		return nil, err
	}
	slices.SortStableFunc(l.found, func(a, b Sighting) int {
		return cmp.Or(
			cmp.Compare(stateOrder[a.State], stateOrder[b.State]),
			view.CompareEntries(a.orderedBy(), b.orderedBy()),
		)
	})
	return l.found, nil
}

// stateOrder is the order of places. Places in the schedule come first.
var stateOrder = map[State]int{StateScheduled: 0, StateRetrying: 0, StateReady: 1, StatePending: 1, StateDead: 2}

// orderedBy returns the entry ID that orders places with the same stateOrder; "" in the schedule.
func (s Sighting) orderedBy() string {
	if s.State == StateDead {
		_, letter, _ := deadletter.SplitLetter(s.Letter)
		return letter
	}
	return s.Entry
}

// add adds a place, with its reason, and reports it.
func (l *locator) add(ctx context.Context, s Sighting) {
	s.Queue, s.Partition = l.queue, l.partition
	if l.reasons != nil && s.Why == "" {
		front := ""
		if s.Waits {
			s.Front, front = l.reasons.front(ctx, l.keys, s.Key)
		}
		s.Why = l.reasons.why(ctx, s, front)
	}
	l.found = append(l.found, s)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen != nil {
		l.seen(s)
	}
}

// sizes returns the numbers of items to read, and sets window.
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

// addMember adds the place of one member of the schedule, if the member exists.
func (l *locator) addMember(ctx context.Context, member string, state State, group string) error {
	score := math.NaN()
	var payload []byte
	var meta string
	err := view.Ask(ctx, l.c,
		view.Into(l.c.B().Zscore().Key(l.keys.Due).Member(member).Build(), &score, rueidis.RedisResult.AsFloat64),
		view.Into(l.c.B().Hget().Key(l.keys.Payload).Field(member).Build(), &payload, rueidis.RedisResult.AsBytes),
		view.Into(l.c.B().Hget().Key(l.keys.Meta).Field(member).Build(), &meta, rueidis.RedisResult.ToString))
	if err != nil || math.IsNaN(score) { // NaN: the member does not exist
		return err
	}
	e, _ := lua.DecodeMeta(l.id, meta) // a message with malformed meta becomes a dead letter when it is due
	place := placeOf(state, e)
	place.Due, place.Waits = view.Shown(view.ScoreTime(score)), waitsForKey(score)
	place.Group = group
	place.Payload = payload
	if payload == nil {
		place.Payload = view.Payload{}
	}
	l.add(ctx, Sighting{Place: place, Before: lua.ParseMember(member).Of})
	return nil
}

// addRetries adds the places of the message's retries in the schedule. due is the size of the schedule, metas that of
// the hash meta. Each retry has a field in the meta, so addRetries scans the schedule or the meta, whichever is
// smaller.
func (l *locator) addRetries(ctx context.Context, due, metas int64) error {
	total := min(due, metas)
	if total == 0 {
		return nil
	}
	seen := map[string]bool{} // a scan may return a member twice
	looked := int64(0)
	for cursor := uint64(0); ; {
		page, err := l.scan(ctx, due < metas, cursor)
		if err != nil {
			return err
		}
		l.addProgress(min(scanCount, total-looked), 0)
		looked = min(looked+scanCount, total)
		for i := 0; i+1 < len(page.Elements); i += 2 {
			member := page.Elements[i]
			m := lua.ParseMember(member)
			if m.Kind == lua.MemberFirst || seen[member] {
				continue
			}
			seen[member] = true
			state := StateRetrying
			if m.Group == "" { // the message was redriven for all groups
				state = StateScheduled
			}
			if err := l.addMember(ctx, member, state, m.Group); err != nil {
				return err
			}
		}
		if cursor = page.Cursor; cursor == 0 {
			return nil
		}
	}
}

const scanCount = 1000 // members per step of a scan

// scan takes one step of a scan through the schedule if schedule is true, or else through the meta.
func (l *locator) scan(ctx context.Context, schedule bool, cursor uint64) (page rueidis.ScanEntry, err error) {
	pattern := view.EscapeGlob(l.id) + lua.Separator + "*"
	scan := l.c.B().Hscan().Key(l.keys.Meta).Cursor(cursor).Match(pattern).Count(scanCount).Build
	if schedule {
		scan = l.c.B().Zscan().Key(l.keys.Due).Cursor(cursor).Match(pattern).Count(scanCount).Build
	}
	err = view.AskLong(ctx, l.c, view.Scan(scan(), &page))
	return page, err
}

// addEntry adds the places of a stream entry: one if it was not yet delivered to some groups, and one for each group
// that holds it.
func (l *locator) addEntry(ctx context.Context, stored rueidis.XRangeSlice) error {
	e := lua.ParseEntry(stored.ID, stored.FieldValues)
	id, err := view.ParseEntryID(e.EntryID)
	if err != nil {
		return err
	}
	info, err := view.ReadStream(ctx, l.c, l.keys.Stream)
	if err != nil {
		return err
	}
	ready := placeOf(StateReady, e)
	var waiting []view.GroupInfo // the groups in ready.Groups
	for _, g := range info.Groups {
		if e.For != "" && e.For != g.Name {
			continue // a retry for another group
		}
		if id.Compare(g.Last) > 0 {
			ready.Groups, waiting = append(ready.Groups, g.Name), append(waiting, g)
			continue
		}
		if err := l.addPending(ctx, e, g.Name); err != nil {
			return err
		}
	}
	if len(waiting) > 0 || len(info.Groups) == 0 {
		s := Sighting{Place: ready, For: e.For}
		if l.reasons != nil {
			s.Queue = l.queue
			s.Why = l.reasons.whyReady(ctx, l.keys.Stream, waiting, s)
		}
		l.add(ctx, s)
	}
	return nil
}

// addPending adds the place of an entry if a consumer of the group holds it.
func (l *locator) addPending(ctx context.Context, e lua.Entry, group string) error {
	onlyEntry := view.PendingRange{From: e.EntryID, To: e.EntryID, Count: 1}
	list, err := view.ReadPending(ctx, l.c, l.keys.Stream, group, onlyEntry)
	if errors.Is(err, lua.ErrNoGroup) {
		return nil
	}
	if err != nil || len(list) == 0 {
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
	p := list[0]
	place := placeOf(StatePending, e)
	place.Group, place.Consumer, place.Idle = group, p.Consumer, view.Millis(p.Idle)
	place.HeldSince = p.Since(notes, now)
	place.Held = view.Millis(max(0, now.Sub(place.HeldSince)))
	l.add(ctx, Sighting{Place: place, For: e.For, Deliveries: p.Deliveries, Cancelled: p.Cancelled,
		GivenBack: p.GivenBack})
	return nil
}

// addLetter adds the place of a dead letter.
func (l *locator) addLetter(ctx context.Context, stored rueidis.XRangeSlice) error {
	e := lua.ParseLetter(stored.ID, stored.FieldValues)
	place := placeOf(StateDead, e.Entry)
	place.Letter, place.Entry = deadletter.LetterName(l.partition, e.EntryID), e.FailedEntry
	place.Group, place.Reason, place.Dead = e.Group, e.Reason, view.Shown(e.Dead)
	l.add(ctx, Sighting{Place: place})
	return nil
}
