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

// RedriveOptions control how letters are scheduled again. With the zero value each letter is scheduled unchanged, for
// the group in which it failed, to be due at once, and as fast as possible.
type RedriveOptions struct {
	Payload     *[]byte            // replaces the payload of each letter; needed for a letter without a payload
	Headers     *map[string]string // replaces the headers of each letter
	Delay       time.Duration      // from the redrive of a letter to its due time
	Spread      time.Duration      // each letter is delayed by a further random time of up to this
	To          string             // the group that gets the letters; "": each goes to the group in which it failed
	MaxAttempts int                // replaces MaxAttempts of each letter; 0: keep it
	Expires     time.Time          // when the messages expire, by the server's clock; zero: never

	// Rate is the greatest number of letters per second; 0: no limit. After a stall, at most the letters of one second
	// are redriven at once.
	Rate   float64
	DryRun bool // if true, the redrive changes nothing, and only counts the outcomes

	// Selected is called for each letter before it is redriven.
	Selected func(Letter)

	// Progress is called after each call to the server, with the number of letters done so far and the total. Without a
	// Total, RedriveMatching counts the letters first, for which it reads them all.
	Progress func(done, total int)
	Total    int
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
		errs = append(errs, lua.Invalid("rate", fmt.Sprint(o.Rate),
			"must be a number of letters per second, or 0 for no limit"))
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

// newMeta returns the meta that replaces a letter's headers, attempts and expiry. It returns "" if they are kept, and
// ok = false if the letter's headers are needed and cannot be read.
func (o RedriveOptions) newMeta(l Letter) (meta string, ok bool) {
	if o.Headers == nil && o.MaxAttempts == 0 && o.Expires.IsZero() {
		return "", true
	}
	headers, attempts := l.Headers, cmp.Or(o.MaxAttempts, l.MaxAttempts)
	if o.Headers != nil {
		headers = *o.Headers
	} else if l.Unreadable() || lua.CheckHeaders(headers) != nil {
		return "", false
	}
	if lua.CheckMaxAttempts(attempts) != nil {
		attempts = 0
	}
	return cmp.Or(lua.EncodeMeta(headers, attempts, o.Expires), "{}"), true
}

// Unreadable reports whether the letter holds a malformed message whose headers or other fields could not be parsed, or
// were too many, so that the letter keeps their raw text. It is redriven only with new headers.
func (l Letter) Unreadable() bool {
	_, raw := l.Extra[lua.FieldRaw]
	return l.Reason == lua.ReasonMalformed && (raw || l.Extra[lua.FieldMeta] != "")
}

// RedriveResult counts the outcomes of a redrive.
type RedriveResult struct {
	Scheduled int `json:"scheduled"`
	Gone      int `json:"gone"` // another caller redrove or purged the letter, or it never existed
	// NoPayload counts letters left unchanged because the body was lost or could not be kept, and no payload was given.
	NoPayload int `json:"no_payload"`
	// Unreadable counts letters left unchanged because headers or other fields are unreadable or too large, and no
	// headers were given.
	Unreadable int      `json:"unreadable"`
	GroupGone  int      `json:"group_gone"`            // letters left unchanged because the stream lacks their group
	GoneGroups []string `json:"gone_groups,omitempty"` // the missing groups, sorted
}

// Left returns how many letters are left unchanged.
func (r RedriveResult) Left() int { return r.NoPayload + r.Unreadable + r.GroupGone }

// total returns the number of letters counted.
func (r RedriveResult) total() int { return r.Scheduled + r.Gone + r.Left() }

// count adds the outcome of a letter for a group. It returns false if the server refused the new headers.
func (r *RedriveResult) count(outcome lua.Redriven, group string) bool {
	switch outcome {
	case lua.RedriveScheduled:
		r.Scheduled++
	case lua.RedriveGone:
		r.Gone++
	case lua.RedriveNoPayload:
		r.NoPayload++
	case lua.RedriveUnreadable:
		r.Unreadable++
	case lua.RedriveGroupGone:
		r.GroupGone++
		if i, known := slices.BinarySearch(r.GoneGroups, group); !known {
			r.GoneGroups = slices.Insert(r.GoneGroups, i, group)
		}
	default:
		return false
	}
	return true
}

// Redrive schedules letters again by name, each for the group in which it failed (or To), from attempt 1 and without
// its old expiry. A letter without an ordering key is scheduled in its own partition. A letter with an ordering key is
// scheduled in the present partition of the key, where it takes its turn. It is added there before it is deleted from
// its own partition. If Redrive fails midway, letters that were scheduled stay scheduled, and repeating Redrive does
// the rest; a letter that was added but not deleted may be delivered again.
//
// It takes one round trip to read 8 letters. Each batch of up to 100 letters takes one more for the letters that stay
// in their partition, and another one if a letter of the batch has an ordering key. A letter that goes to another
// partition is read again. Each partition to which letters of a batch move takes two round trips: one adds the letters,
// and one deletes them from their own partition.
func (d *DeadLetters) Redrive(
	ctx context.Context, queue string, letters []string, o RedriveOptions,
) (RedriveResult, error) {
	_, invalid := splitLetters(letters)
	return d.redrive(ctx, queue, d.showEach(ctx, queue, letters), len(letters), o, invalid)
}

// RedriveMatching is Redrive for all letters that pass the filter. Letters added meanwhile stay. If ctx ends, it
// finishes the current call first, so that the result is complete.
func (d *DeadLetters) RedriveMatching(
	ctx context.Context, queue string, f Filter, o RedriveOptions,
) (RedriveResult, error) {
	total := o.Total
	if o.Progress != nil && total == 0 {
		var err error
		if total, err = d.Count(ctx, queue, f); err != nil {
			return RedriveResult{}, err
		}
	}
	return d.redrive(ctx, queue, d.List(ctx, queue, f), total, o, nil)
}

// redrive redrives letters, unless an argument is invalid. invalid is the error of invalid names of letters; nil: all
// names are valid. total is the number of letters for the progress.
func (d *DeadLetters) redrive(
	ctx context.Context, queue string, letters iter.Seq2[Letter, error], total int, o RedriveOptions, invalid error,
) (RedriveResult, error) {
	r := redriver{d: d, queue: queue, total: total, options: o, pace: loop.Pace{Rate: o.Rate},
		batches: map[int]*redriveBatch{}, groups: map[int][]string{}}
	err := errors.Join(invalid, d.check(queue), o.validate())
	if err == nil {
		err = r.run(ctx, letters)
		if !o.DryRun {
			d.report(queue, observe.Redriven, r.result.Scheduled)
		}
	}
	if err != nil {
		return r.result, fmt.Errorf("redrive dead letters of %s: %w", queue, err)
	}
	return r.result, nil
}

// redriver collects letters into batches, each of one partition and bounded in letters and bytes, and sends the batches
// at the rate of the options.
type redriver struct {
	d       *DeadLetters
	queue   string
	total   int // letters, for the progress
	options RedriveOptions
	pace    loop.Pace
	counts  lua.Counts            // the queue's partition counts; nil: not read yet
	batches map[int]*redriveBatch // by partition of the letters
	groups  map[int][]string      // dry run: the groups of the stream, by partition
	result  RedriveResult
}

// redriveRoute is the partition from which a letter is taken, and the partition in which it is scheduled.
type redriveRoute struct{ from, to int }

type redriveBatch struct {
	letters []lua.Redrive
	groups  []string // for each letter, the group that gets it
	keys    []string // for each letter, its ordering key; "": it has none
	bytes   int
}

func (r *redriver) run(ctx context.Context, letters iter.Seq2[Letter, error]) error {
	for letter, err := range letters {
		switch {
		case errors.Is(err, ErrNotFound):
			r.result.Gone++
			continue
		case err == nil && r.options.DryRun:
			err = r.countForeseen(ctx, letter)
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

// orderingKey returns the ordering key of a letter; "" if it has none, or if the key is not valid.
func orderingKey(l Letter) string {
	if key := l.Extra[lua.FieldKey]; lua.CheckKey(key) == nil {
		return key
	}
	return ""
}

// payload returns the payload with which a letter is scheduled.
func (o RedriveOptions) payload(l Letter) []byte {
	if o.Payload != nil {
		return *o.Payload
	}
	return l.Payload
}

// add adds a letter to the batch of its partition, and sends the batch when it is full.
func (r *redriver) add(ctx context.Context, l Letter) error {
	if r.options.Selected != nil {
		r.options.Selected(l)
	}
	partition, entry, err := SplitLetter(l.Letter)
	if err != nil {
		return err
	}
	group := cmp.Or(r.options.To, l.Group)
	meta, ok := r.options.newMeta(l)
	if !ok {
		r.result.count(lua.RedriveUnreadable, group)
		return nil
	}
	letter := lua.Redrive{Letter: entry, When: lua.After(r.options.delay()), Payload: r.options.Payload,
		To: r.options.To, Fields: meta}
	b := r.batches[partition]
	if b == nil {
		b = &redriveBatch{}
		r.batches[partition] = b
	}
	b.letters = append(b.letters, letter)
	b.groups = append(b.groups, group)
	b.keys = append(b.keys, orderingKey(l))
	// The script reads the old payload and writes the new one, so both count, even if they are the same.
	b.bytes += len(r.options.payload(l)) + len(l.Payload) + len(meta)
	if len(b.letters) < r.pace.Batch(redriveLetters) && b.bytes < redriveBytes {
		return nil
	}
	return r.flush(ctx, partition)
}

// readCounts reads the partition counts if one of the ordering keys is not empty. A redrive calls it before each
// batch, because a redrive with a rate may run for hours, and the queue may grow during that time. A dry run calls it
// once.
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

// target returns the partition in which a letter is scheduled: its own partition, or with an ordering key the present
// partition of the key.
func (r *redriver) target(partition int, key string) int {
	if key == "" {
		return partition
	}
	return r.counts.Of(key)
}

// countForeseen counts, for a dry run, the outcome that a redrive of the letter would have.
func (r *redriver) countForeseen(ctx context.Context, l Letter) error {
	if r.options.Selected != nil {
		r.options.Selected(l)
	}
	partition, _, err := SplitLetter(l.Letter)
	if err != nil {
		return err
	}
	key := orderingKey(l)
	if r.counts == nil {
		if err := r.readCounts(ctx, key); err != nil {
			return err
		}
	}
	groups, err := r.groupsOf(ctx, r.target(partition, key))
	if err != nil {
		return err
	}
	group := cmp.Or(r.options.To, l.Group)
	_, metaOK := r.options.newMeta(l)
	outcome := lua.RedriveScheduled
	switch {
	case r.options.payload(l) == nil:
		outcome = lua.RedriveNoPayload
	// Without new headers the server refuses an unreadable letter, even if nothing else of it is replaced.
	case !metaOK, r.options.Headers == nil && l.Unreadable():
		outcome = lua.RedriveUnreadable
	case group != "" && !slices.Contains(groups, group):
		outcome = lua.RedriveGroupGone
	}
	r.result.count(outcome, group)
	return nil
}

// groupsOf returns the groups of a partition's stream. It reads them once.
func (r *redriver) groupsOf(ctx context.Context, partition int) ([]string, error) {
	if groups, known := r.groups[partition]; known {
		return groups, nil
	}
	info, err := view.ReadStream(ctx, r.d.client, r.d.keys(r.queue, partition).Stream)
	if err != nil {
		return nil, err
	}
	r.groups[partition] = info.Names()
	return r.groups[partition], nil
}

// flush sends the batch of a partition at the time that the rate allows. Letters with ordering keys may go to other
// partitions.
func (r *redriver) flush(ctx context.Context, partition int) error {
	b := r.batches[partition]
	if len(b.letters) == 0 {
		return nil
	}
	if !r.pace.Wait(ctx, len(b.letters)) {
		return ctx.Err()
	}
	ctx = context.WithoutCancel(ctx) // the batch is finished even if ctx ends
	if err := r.readCounts(ctx, b.keys...); err != nil {
		return err
	}
	targets := map[int]*redriveBatch{} // by the partition in which the letters are scheduled
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

// send schedules letters along a route, counts their outcomes, and reports the progress.
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
		r.options.Progress(r.result.total(), max(r.total, r.result.total()))
	}
	return err
}

// redrive schedules letters along a route, and returns the outcome of each. It returns nil if no outcome is known.
func (r *redriver) redrive(ctx context.Context, route redriveRoute, letters []lua.Redrive) ([]lua.Redriven, error) {
	if route.from == route.to {
		return lua.RedriveDead(ctx, r.d.client, r.d.keys(r.queue, route.from), letters)
	}
	dead := r.d.keys(r.queue, route.from).Dead
	outcomes := make([]lua.Redriven, len(letters)) // a letter that is not found keeps the zero value, RedriveGone
	var moved []lua.Redrive
	var indexes []int // for each moved letter, its index in letters
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
			// The script cannot tell an edited letter of another partition. So the progress, which belongs to the old
			// payload, is left out here.
			replaced := func(f lua.FieldValue) bool { return f.Field == lua.FieldPayload || lua.IsProgress(f.Field) }
			edited := lua.FieldValue{Field: lua.FieldPayload, Value: string(*l.Payload)}
			l.Moved = append(slices.DeleteFunc(slices.Clone(l.Moved), replaced), edited)
		}
		moved, indexes = append(moved, l), append(indexes, i)
	}
	if len(moved) == 0 {
		return outcomes, nil
	}
	added, err := lua.RedriveDead(ctx, r.d.client, r.d.keys(r.queue, route.to), moved)
	if err != nil {
		return nil, err
	}
	var scheduled []string
	for i, outcome := range added {
		outcomes[indexes[i]] = outcome
		if outcome == lua.RedriveScheduled {
			scheduled = append(scheduled, moved[i].Letter)
		}
	}
	if len(scheduled) == 0 {
		return outcomes, nil
	}
	// If another process redrives one of these letters before the deletion, the letter is delivered twice.
	_, err = uninterrupted(ctx, func(ctx context.Context) (int, error) {
		return lua.PurgeDead(ctx, r.d.client, r.d.keys(r.queue, route.from), scheduled)
	})
	if err != nil {
		err = fmt.Errorf("%d letters were scheduled in partition %d and are still in partition %d: %w",
			len(scheduled), route.to, route.from, err)
	}
	return outcomes, err
}
