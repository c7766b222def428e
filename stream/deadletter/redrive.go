package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Bounds of one call that redrives.
const (
	redriveLetters = 100
	redriveBytes   = 1 << 20
)

// RedriveOptions control how letters are scheduled again. The zero value: each unchanged, for the group in which it
// failed, at once, as fast as possible.
type RedriveOptions struct {
	Payload     *[]byte            // replaces the payload of each; needed for a letter without one
	Headers     *map[string]string // replaces the headers of each
	Delay       time.Duration      // from the redrive of a letter to its due time
	Spread      time.Duration      // a further random delay of up to this long
	To          string             // the group that gets the letters; "" = for each the group in which it failed
	MaxAttempts int                // replaces that of each; 0 = keep
	Expires     time.Time          // of each, by the server's clock; zero = never
	// letters per second, over any time; after a stall at most one second's worth at once; 0 = no limit
	Rate   float64
	DryRun bool // changes nothing, and counts the outcomes

	// Selected is called for each letter before it is redriven.
	Selected func(Letter)

	// Progress is called after each call to the server, with the number of letters done so far and the total.
	Progress func(done, total int)
}

func (o RedriveOptions) validate() error {
	errs := []error{lua.CheckDelay("delay", o.Delay), lua.CheckDelay("spread", o.Spread)}
	if o.Payload != nil {
		errs = append(errs, lua.CheckPayload(*o.Payload))
	}
	if o.Headers != nil {
		errs = append(errs, lua.CheckHeaders(*o.Headers))
	}
	if o.To != "" {
		errs = append(errs, lua.CheckGroup(o.To))
	}
	if o.MaxAttempts != 0 {
		errs = append(errs, lua.CheckMaxAttempts(o.MaxAttempts))
	}
	if !(o.Rate >= 0) || math.IsInf(o.Rate, 0) {
		errs = append(errs, lua.Invalid("rate", fmt.Sprint(o.Rate), "must be a number of letters per second, or 0 for no limit"))
	}
	return errors.Join(errs...)
}

// delay returns the delay from a letter's redrive to its due time.
func (o RedriveOptions) delay() time.Duration {
	if o.Spread <= 0 {
		return o.Delay
	}
	return o.Delay + rand.N(o.Spread)
}

// fields returns the meta that replaces a letter's headers, attempts and expiry; "" = keep them. It returns false if
// the letter's headers are needed and cannot be read.
func (o RedriveOptions) fields(l Letter) (meta string, ok bool) {
	if o.Headers == nil && o.MaxAttempts == 0 && o.Expires.IsZero() {
		return "", true
	}
	headers, attempts := l.Headers, cmp.Or(o.MaxAttempts, l.MaxAttempts)
	if o.Headers != nil {
		headers = *o.Headers
	} else if isUnreadable(l) || lua.CheckHeaders(headers) != nil {
		return "", false
	}
	if lua.CheckMaxAttempts(attempts) != nil {
		attempts = 0
	}
	return cmp.Or(lua.EncodeMeta(headers, attempts, o.Expires), "{}"), true
}

// isUnreadable reports whether parts of a malformed message are in its letter only as they were found.
func isUnreadable(l Letter) bool {
	_, raw := l.Extra[lua.FieldRaw]
	return l.Reason == lua.ReasonMalformed && (raw || l.Extra[lua.FieldMeta] != "")
}

// RedriveResult counts the outcomes of a redrive.
type RedriveResult struct {
	Scheduled int `json:"scheduled"`
	Gone      int `json:"gone"` // redriven or purged by somebody else, or never existed
	// unchanged: the body was lost or could not be kept, and no payload was given
	NoPayload int `json:"no_payload"`
	// unchanged: headers and other fields are unreadable or too large, and no headers were given
	Unreadable int      `json:"unreadable"`
	GroupGone  int      `json:"group_gone"`            // unchanged: the stream lacks their group
	GoneGroups []string `json:"gone_groups,omitempty"` // the missing groups
}

// Left returns how many letters are left unchanged.
func (r RedriveResult) Left() int { return r.NoPayload + r.Unreadable + r.GroupGone }

func (r RedriveResult) done() int { return r.Scheduled + r.Gone + r.Left() }

// count adds the outcome of a letter for a group. It returns false if the server refused the new headers.
func (r *RedriveResult) count(outcome lua.Redriven, group string) bool {
	counter := map[lua.Redriven]*int{lua.RedriveScheduled: &r.Scheduled, lua.RedriveNoPayload: &r.NoPayload,
		lua.RedriveUnreadable: &r.Unreadable, lua.RedriveGroupGone: &r.GroupGone, lua.RedriveGone: &r.Gone}[outcome]
	if counter == nil {
		return false
	}
	*counter++
	if at, known := slices.BinarySearch(r.GoneGroups, group); outcome == lua.RedriveGroupGone && !known {
		r.GoneGroups = slices.Insert(r.GoneGroups, at, group)
	}
	return true
}

// Redrive schedules letters again by name, each for the group in which it failed (or To), from attempt 1 and without
// its old expiry. A letter without a key is scheduled in its own partition. A letter with a key goes to the present
// partition of its key, where it takes its turn: it is added there before it is deleted here. If Redrive fails midway,
// letters that were scheduled stay scheduled, and repeating it does the rest; a letter that was added but not deleted
// may be delivered again. One round trip per letter, and one per 100, or two if any has a key; letters that go to
// another partition take two more.
func (d *DeadLetters) Redrive(ctx context.Context, queue string, letters []string, o RedriveOptions) (RedriveResult, error) {
	_, invalid := splitLetters(letters)
	return d.redrive(ctx, queue, func(yield func(Letter, error) bool) {
		for _, id := range letters {
			if !yield(d.Show(ctx, queue, id)) {
				return
			}
		}
	}, len(letters), o, invalid)
}

// RedriveMatching is Redrive for all letters that pass the filter. Letters added meanwhile stay. If ctx ends, the
// current call is finished first, so that the result is complete.
func (d *DeadLetters) RedriveMatching(ctx context.Context, queue string, f Filter, o RedriveOptions) (RedriveResult, error) {
	total := 0
	if o.Progress != nil {
		var err error
		if total, err = d.Count(ctx, queue, f); err != nil {
			return RedriveResult{}, err
		}
	}
	return d.redrive(ctx, queue, d.List(ctx, queue, f), total, o, nil)
}

func (d *DeadLetters) redrive(ctx context.Context, queue string, letters iter.Seq2[Letter, error], total int, o RedriveOptions,
	invalid error) (RedriveResult, error) {
	r := redriver{d: d, queue: queue, total: total, options: o, pace: loop.Pace{Rate: o.Rate},
		batches: map[int]*redriveBatch{}, groups: map[int][]string{}}
	err := errors.Join(invalid, d.check(queue), o.validate())
	if err == nil {
		err = r.run(ctx, letters)
		if !o.DryRun {
			d.told(queue, observe.Redriven, r.result.Scheduled)
		}
	}
	if err != nil {
		return r.result, fmt.Errorf("redrive dead letters of %s: %w", queue, err)
	}
	return r.result, nil
}

// redriver gathers letters into batches that are bounded in letters and bytes, each of one partition, and keeps the
// rate.
type redriver struct {
	d       *DeadLetters
	queue   string
	total   int
	options RedriveOptions
	pace    loop.Pace
	counts  lua.Counts            // nil = not read yet
	batches map[int]*redriveBatch // by partition
	groups  map[int][]string      // in a dry run: groups on the stream, by partition
	result  RedriveResult
}

// redriveRoute is the partition of a letter, and the partition in which it is scheduled.
type redriveRoute struct{ from, to int }

type redriveBatch struct {
	letters []lua.Redrive
	groups  []string // recipients, per letter
	keys    []string // of the messages, per letter; "" = none
	bytes   int
}

func (r *redriver) run(ctx context.Context, letters iter.Seq2[Letter, error]) error {
	for letter, err := range letters {
		switch {
		case errors.Is(err, ErrNotFound):
			r.result.Gone++
			continue
		case err == nil:
			err = r.add(ctx, letter)
		}
		if err != nil {
			return err
		}
	}
	for _, partition := range slices.Sorted(maps.Keys(r.batches)) {
		if err := r.flush(ctx, partition); err != nil {
			return err
		}
	}
	return nil
}

func (r *redriver) add(ctx context.Context, l Letter) error {
	if r.options.Selected != nil {
		r.options.Selected(l)
	}
	payload := []byte(l.Payload)
	if r.options.Payload != nil {
		payload = *r.options.Payload
	}
	partition, entry, err := SplitLetter(l.Letter)
	if err != nil {
		return err
	}
	key := l.Extra[lua.FieldKey]
	if lua.CheckKey(key) != nil {
		key = ""
	}
	group := cmp.Or(r.options.To, l.Group)
	if r.options.DryRun {
		if r.counts == nil {
			if err := r.readCounts(ctx, key); err != nil {
				return err
			}
		}
		outcome, err := r.foresee(ctx, l, r.target(partition, key), group, payload)
		if err == nil {
			r.result.count(outcome, group)
		}
		return err
	}
	fields, ok := r.options.fields(l)
	if !ok {
		r.result.count(lua.RedriveUnreadable, group)
		return nil
	}
	one := lua.Redrive{Letter: entry, When: lua.After(r.options.delay()), Payload: r.options.Payload, To: r.options.To,
		Fields: fields}
	b := r.batches[partition]
	if b == nil {
		b = &redriveBatch{}
		r.batches[partition] = b
	}
	b.letters, b.groups, b.keys = append(b.letters, one), append(b.groups, group), append(b.keys, key)
	b.bytes += len(payload) + len(l.Payload) + len(one.Fields)
	if len(b.letters) < r.pace.Batch(redriveLetters) && b.bytes < redriveBytes {
		return nil
	}
	return r.flush(ctx, partition)
}

// readCounts reads the partition counts again if one of the keys is not empty. A redrive with a rate may run for hours,
// and the queue may grow meanwhile.
func (r *redriver) readCounts(ctx context.Context, keys ...string) error {
	if !slices.ContainsFunc(keys, func(key string) bool { return key != "" }) {
		return nil
	}
	counts, err := view.ReadCounts(ctx, r.d.client, r.d.prefix, r.queue)
	if err == nil {
		r.counts = r.counts.With(counts...)
	}
	return err
}

// target returns the partition in which a letter is scheduled: its own partition, or the present partition of its key.
func (r *redriver) target(partition int, key string) int {
	if key == "" {
		return partition
	}
	return r.counts.Of(key)
}

// foresee returns the outcome that a redrive of the letter would have.
func (r *redriver) foresee(ctx context.Context, l Letter, partition int, group string, payload []byte) (lua.Redriven, error) {
	groups, known := r.groups[partition]
	if !known {
		info, err := view.ReadStream(ctx, r.d.client, r.d.keys(r.queue, partition).Stream)
		if err != nil {
			return lua.RedriveGone, err
		}
		groups = info.Names()
		r.groups[partition] = groups
	}
	_, readable := r.options.fields(l)
	switch {
	case payload == nil:
		return lua.RedriveNoPayload, nil
	case !readable, r.options.Headers == nil && isUnreadable(l):
		return lua.RedriveUnreadable, nil
	case group != "" && !slices.Contains(groups, group):
		return lua.RedriveGroupGone, nil
	}
	return lua.RedriveScheduled, nil
}

// flush schedules the gathered letters of a partition.
func (r *redriver) flush(ctx context.Context, partition int) error {
	b := r.batches[partition]
	if len(b.letters) == 0 {
		return nil
	}
	if !r.pace.Wait(ctx, len(b.letters)) {
		return ctx.Err()
	}
	ctx = context.WithoutCancel(ctx)
	if err := r.readCounts(ctx, b.keys...); err != nil {
		return err
	}
	targets := map[int]*redriveBatch{}
	for i, key := range b.keys {
		to := r.target(partition, key)
		if targets[to] == nil {
			targets[to] = &redriveBatch{}
		}
		targets[to].letters = append(targets[to].letters, b.letters[i])
		targets[to].groups = append(targets[to].groups, b.groups[i])
	}
	*b = redriveBatch{}
	for _, to := range slices.Sorted(maps.Keys(targets)) {
		if err := r.send(ctx, redriveRoute{partition, to}, targets[to]); err != nil {
			return err
		}
	}
	return nil
}

// send schedules letters of one partition in the partition of a route, and counts them.
func (r *redriver) send(ctx context.Context, route redriveRoute, b *redriveBatch) error {
	call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	outcomes, err := r.redrive(call, route, b.letters)
	for i, outcome := range outcomes {
		if !r.result.count(outcome, b.groups[i]) {
			err = errors.Join(err, fmt.Errorf("letter %s: the new headers were refused",
				LetterName(route.from, b.letters[i].Letter)))
		}
	}
	if outcomes != nil && r.options.Progress != nil {
		r.options.Progress(r.result.done(), max(r.total, r.result.done()))
	}
	return err
}

// redrive schedules letters of one partition. Outcomes are nil if none is known.
func (r *redriver) redrive(ctx context.Context, route redriveRoute, letters []lua.Redrive) ([]lua.Redriven, error) {
	if route.from == route.to {
		return lua.RedriveDead(ctx, r.d.client, r.d.keys(r.queue, route.from), letters)
	}
	dead := r.d.keys(r.queue, route.from).Dead
	outcomes := make([]lua.Redriven, len(letters)) // gone, unless found below
	var there []int
	var moved []lua.Redrive
	for i, l := range letters {
		entry, ok, err := view.ReadEntry(ctx, r.d.client, dead, l.Letter)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		l.Moved = entry.FieldValues
		if l.Payload != nil {
			isPayload := func(f lua.FieldValue) bool { return f.Field == lua.FieldPayload }
			edited := lua.FieldValue{Field: lua.FieldPayload, Value: string(*l.Payload)}
			l.Moved = append(slices.DeleteFunc(slices.Clone(l.Moved), isPayload), edited)
		}
		there, moved = append(there, i), append(moved, l)
	}
	if len(moved) == 0 {
		return outcomes, nil
	}
	added, err := lua.RedriveDead(ctx, r.d.client, r.d.keys(r.queue, route.to), moved)
	if err != nil {
		return nil, err
	}
	var done []string
	for i, outcome := range added {
		outcomes[there[i]] = outcome
		if outcome == lua.RedriveScheduled {
			done = append(done, moved[i].Letter)
		}
	}
	if len(done) == 0 {
		return outcomes, nil
	}
	// If another process has redriven one of them here meanwhile, that letter is delivered again.
	if _, err = r.d.deleted(ctx, r.d.client.B().Xdel().Key(dead).Id(done...).Build()); err != nil {
		err = fmt.Errorf("%d letters were scheduled in partition %d and are still in partition %d: %w", len(done), route.to,
			route.from, err)
	}
	return outcomes, err
}
