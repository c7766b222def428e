package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// This file redrives and purges dead letters: those that the viewer has selected, or all that pass a filter. A page
// asks for the details first. It names its letters in the address, and changes nothing.

// Bounds of a form that names letters.
const (
	mostSelected = 500 // letters
	mostLines    = 50  // of these, so many are listed: each is read with its payload
)

// chosen is the set of letters that a page or a form is about: some by name, or all that pass a filter.
type chosen struct {
	queue   string
	letters []string // names; none = all that pass the filter
	filter  admin.LetterFilter
}

// chosen returns the letters that the address or the form names.
func (q *request) chosen() (c chosen, err error) {
	c.queue = q.queue()
	if err := lua.CheckQueue(c.queue); err != nil {
		return c, err
	}
	c.letters = slices.Compact(slices.Sorted(slices.Values(q.query["letter"])))
	if len(c.letters) > mostSelected {
		return c, lua.Invalid("letter", fmt.Sprint(len(c.letters)),
			"must be at most %d letters: change all that match instead", mostSelected)
	}
	if len(c.letters) == 0 && q.query.Get("do") == "selected" {
		return c, lua.Invalid("letter", "", "must be one or more letters: select some in the list first")
	}
	if len(c.letters) == 0 {
		c.filter, err = q.letterFilter()
	}
	return c, err
}

// IsAll reports whether the set is all letters that pass a filter.
func (c chosen) IsAll() bool { return len(c.letters) == 0 }

// Number returns how many letters were chosen by name.
func (c chosen) Number() int { return len(c.letters) }

// Words names the set.
func (c chosen) Words() string {
	switch {
	case !c.IsAll():
		return plural(len(c.letters), "dead letter", "dead letters")
	case filterWords(c.filter) == "":
		return "all dead letters"
	}
	return "all dead letters " + filterWords(c.filter)
}

// Fields returns the hidden fields that name the set in a form.
func (c chosen) Fields() []jobField {
	fields := []jobField{{"queue", c.queue}}
	for _, name := range c.letters {
		fields = append(fields, jobField{"letter", name})
	}
	return append(fields, filterFields(c.filter)...)
}

// changeView is the data of the pages that redrive or purge.
type changeView struct {
	chosen
	Queue   string
	Back    string              // page to return to
	Lines   []admin.Letter      // the chosen letters that exist; at most mostLines are looked up
	Gone    int                 // of these, letters that do not exist any more
	More    int                 // chosen letters that were not looked up
	Foresee admin.RedriveResult // of a redrive of the chosen letters
	Groups  []string            // of the queue
}

// Present returns how many chosen letters existed when they were looked up.
func (v changeView) Present() int { return v.Number() - v.Foresee.Gone }

// changeView reads the chosen letters.
func (q *request) changeView() (changeView, error) {
	c, err := q.chosen()
	if err != nil {
		return changeView{}, err
	}
	v := changeView{chosen: c, Queue: c.queue, Back: q.backToLetters()}
	if err := q.op.CheckKnown(q.ctx, c.queue); err != nil {
		return v, err
	}
	if !q.may(access.Operate, c.queue) { // the page only says so
		return v, nil
	}
	leave, err := q.takePayload()
	if err != nil {
		return v, err
	}
	defer leave()
	v.More = max(0, len(c.letters)-mostLines)
	for _, name := range c.letters[:len(c.letters)-v.More] {
		l, err := q.op.DeadLetters().Show(q.ctx, c.queue, name)
		switch {
		case errors.Is(err, admin.ErrNotFound):
			v.Gone++
		case err != nil:
			return v, err
		default:
			l.Payload = nil
			v.Lines = append(v.Lines, l)
		}
	}
	return v, nil
}

// backToLetters returns the page to which a change of letters returns.
func (q *request) backToLetters() string {
	if back := q.query.Get("back"); back != "" {
		return safeNext(back)
	}
	return "dead?queue=" + url.QueryEscape(q.queue())
}

// groupsOf returns the names of the groups of a queue.
func (q *request) groupsOf(queue string) (names []string, err error) {
	samples, err := q.op.Watcher(queue).Look(q.ctx)
	for _, one := range samples {
		for _, g := range one.Groups {
			names = append(names, g.Name)
		}
	}
	return names, err
}

func showRedrive(q *request) (any, error) {
	v, err := q.changeView()
	if err != nil || !q.may(access.Operate, v.queue) {
		return v, err
	}
	if v.Groups, err = q.groupsOf(v.queue); err != nil {
		return nil, err
	}
	if !v.IsAll() {
		o := admin.RedriveOptions{DryRun: true, To: q.query.Get("to")}
		if lua.CheckGroup(o.To) != nil { // the form shows the fault
			o.To = ""
		}
		err = q.readPayloads(func() (err error) {
			v.Foresee, err = q.op.DeadLetters().Redrive(q.ctx, v.queue, v.letters, o)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return v, nil
}

func showPurge(q *request) (any, error) { return q.changeView() }

// redriveOptions returns the options that the form names.
func (q *request) redriveOptions() (o admin.RedriveOptions, err error) {
	var errs [4]error
	o.Delay, errs[0] = q.formDuration("delay")
	o.Spread, errs[1] = q.formDuration("spread")
	o.Rate, errs[2] = q.formRate("rate")
	if o.To = strings.TrimSpace(q.query.Get("to")); o.To != "" {
		errs[3] = inField("to", lua.CheckGroup(o.To))
	}
	return o, errors.Join(errs[:]...)
}

// slowestRedrive is the least number per second: a job with a lower rate would keep its place for ever.
const slowestRedrive = 0.01

// formRate returns a number per second from a field of the form; empty = 0.
func (q *request) formRate(name string) (float64, error) {
	text := strings.TrimSpace(q.query.Get(name))
	if text == "" {
		return 0, nil
	}
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil || !(rate >= slowestRedrive) || rate > lua.MaxBurst { // a rate of 0 would mean no limit
		return 0, inField(name, lua.Invalid(name, text,
			"must be a number of letters per second, between %v and %d; empty = no limit", slowestRedrive, int64(lua.MaxBurst)))
	}
	return rate, nil
}

func redriveLetters(q *request) (done, error) {
	c, err := q.chosen()
	o, wrong := q.redriveOptions()
	if err = errors.Join(err, wrong); err != nil {
		return done{}, err
	}
	if c.IsAll() {
		return q.redriveAll(c, o)
	}
	defer q.book.change(c.queue)
	var result admin.RedriveResult
	err = q.readPayloads(func() (err error) {
		result, err = q.op.DeadLetters().Redrive(q.ctx, c.queue, c.letters, o)
		return err
	})
	if err != nil && result.Scheduled > 0 {
		err = fmt.Errorf("%s already redriven: %w", plural(result.Scheduled, "letter is", "letters are"), err)
	}
	return done{notice: redriveWords(result, o), page: q.backToLetters()}, err
}

// redriveWords tells the result of a redrive.
func redriveWords(r admin.RedriveResult, o admin.RedriveOptions) string {
	words := []string{plural(r.Scheduled, "letter was redriven.", "letters were redriven.")}
	if o.To != "" && r.Scheduled > 0 {
		words[0] = strings.TrimSuffix(words[0], ".") + " to group " + visible(o.To) + "."
	}
	return strings.Join(append(words, leftWords(r)...), " ")
}

// leftWords tells which letters a redrive does not schedule, and why.
func leftWords(r admin.RedriveResult) (words []string) {
	add := func(n int, one, many string) {
		if n > 0 {
			words = append(words, plural(n, one, many))
		}
	}
	add(r.Gone, "letter is gone: somebody else redrove or purged it.",
		"letters are gone: somebody else redrove or purged them.")
	add(r.NoPayload, "letter stays: its payload is lost. Edit it to give it a payload.",
		"letters stay: their payloads are lost. Edit each to give it a payload.")
	add(r.Unreadable, "letter stays: its headers are unreadable. Edit it to give it headers.",
		"letters stay: their headers are unreadable. Edit each to give it headers.")
	gone := "group " + visible(cut(strings.Join(r.GoneGroups, ", "), 200))
	add(r.GroupGone, "letter stays: the queue has no "+gone+".", "letters stay: the queue has no "+gone+".")
	return words
}

// Left tells which of the chosen letters the redrive would not schedule.
func (v changeView) Left() []string {
	return leftWords(v.Foresee)
}

// counted is the field that names the letter that was the newest when the letters that pass a filter were counted. A
// change acts only on letters that existed then.
const counted = "counted"

// newest returns the name of the newest letter that is old enough for a filter; "" = there is none.
func (q *request) newest(queue string, f admin.LetterFilter) (string, error) {
	var p admin.LetterPage
	err := q.readPayloads(func() (err error) {
		p, err = q.op.DeadLetters().Page(q.ctx, queue,
			admin.LetterFilter{OlderThan: f.OlderThan, Newest: true, Limit: 1}, lettersTime)
		return err
	})
	if err != nil || len(p.Lines) == 0 {
		return "", err
	}
	return p.Lines[0].Letter.Letter, nil
}

// onlyCounted limits the set to the letters that passed the filter when they were counted. If they were not counted
// before, it counts now. Letters that become old enough later are not in the set. none means that no letter of the
// queue is old enough.
func (q *request) onlyCounted(c *chosen) (none bool, err error) {
	c.filter.UpTo = q.query.Get(counted)
	if !q.query.Has(counted) {
		c.filter.UpTo, err = q.newest(c.queue, c.filter)
	}
	return c.filter.UpTo == "", err
}

// noLetters is the outcome of a change in a queue without letters of the right age.
func noLetters(q *request, f admin.LetterFilter) done {
	letters := "dead letters"
	if f.OlderThan > 0 {
		letters += " that died at least " + span(f.OlderThan) + " ago"
	}
	return done{notice: q.queue() + " has no " + letters + ". Nothing was changed.", page: q.backToLetters()}
}

// redriveAll starts a job: first one that counts what would happen, and then, from the form of its page, the redrive.
func (q *request) redriveAll(c chosen, o admin.RedriveOptions) (done, error) {
	o.DryRun = !q.query.Has(counted)
	c.filter.Newest = false // the letters are delivered in the order in which they died
	if none, err := q.onlyCounted(&c); err != nil || none {
		return noLetters(q, c.filter), err
	}
	fields := append(c.Fields(), jobField{"delay", q.query.Get("delay")}, jobField{"spread", q.query.Get("spread")},
		jobField{"to", o.To}, jobField{"back", q.backToLetters()}, jobField{counted, c.filter.UpTo})
	letters, book := q.op.DeadLetters(), q.book
	page, err := q.startJob(jobSpec{
		kind: "redrive", title: "Redrive " + visible(c.Words()) + " in " + c.queue, queues: []string{c.queue},
		verbs: []access.Verb{access.Operate}, dryRun: o.DryRun, back: q.backToLetters(),
		next: &jobNext{Path: "do-dead-redrive", Fields: fields, Button: "Redrive", Rate: q.query.Get("rate")},
		run: func(ctx context.Context, report func(jobCounts)) error {
			defer book.change(c.queue)
			total, err := letters.Count(ctx, c.queue, admin.LetterFilter{})
			if err != nil {
				return err
			}
			counts := jobCounts{Total: int64(total), Queue: c.queue}
			o.Selected = func(admin.Letter) {
				counts.Found++
				counts.Looked = min(counts.Found, counts.Total)
				report(counts)
			}
			if !o.DryRun {
				o.Total = total
				o.Progress = func(n, _ int) {
					counts.Changed = int64(n) // includes letters that stay; the end of the job corrects it
					report(counts)
				}
			}
			result, err := letters.RedriveMatching(ctx, c.queue, c.filter, o)
			counts.Changed, counts.Gone = int64(result.Scheduled), int64(result.Gone)
			counts.Refused, counts.Why = int64(result.Left()), leftWords(result)
			if err == nil {
				counts.Looked = counts.Total
			}
			report(counts)
			return err
		},
	})
	return done{page: page}, err
}

func purgeLetters(q *request) (done, error) {
	c, err := q.chosen()
	if err != nil {
		return done{}, err
	}
	if c.IsAll() {
		return q.purgeAll(c)
	}
	if err := q.confirmed(strconv.Itoa(len(c.letters))); err != nil {
		return done{}, err
	}
	defer q.book.change(c.queue)
	n, err := q.op.DeadLetters().Purge(q.ctx, c.queue, c.letters)
	if err != nil && n > 0 {
		err = fmt.Errorf("%s already purged: %w", plural(n, "letter is", "letters are"), err)
	}
	notice := plural(n, "letter was purged.", "letters were purged.")
	if gone := len(c.letters) - n; gone > 0 {
		notice += " " + leftWords(admin.RedriveResult{Gone: gone})[0]
	}
	return done{notice: notice, page: q.backToLetters()}, err
}

// confirmed returns an error unless the viewer has typed a text into the field confirm.
func (q *request) confirmed(want string) error {
	if got := strings.TrimSpace(q.query.Get("confirm")); got != strings.TrimSpace(want) {
		return inField("confirm", lua.Invalid("confirm", got, "must be %s", want))
	}
	return nil
}

// purgeAll starts a job: first one that counts the letters, and then, from the form of its page, the purge.
func (q *request) purgeAll(c chosen) (done, error) {
	dryRun := !q.query.Has(counted)
	if !dryRun {
		want := q.query.Get("count")
		if _, err := strconv.ParseUint(want, 10, 63); err != nil {
			return done{}, lua.Invalid("count", want, "must be the number of letters")
		}
		if err := q.confirmed(want); err != nil {
			return done{}, err
		}
	}
	if none, err := q.onlyCounted(&c); err != nil || none {
		return noLetters(q, c.filter), err
	}
	next := &jobNext{Path: "do-dead-purge", Button: "Purge", Confirm: q.query.Get("count"), NoRate: true, Danger: true,
		Fields: append(c.Fields(), jobField{"back", q.backToLetters()}, jobField{counted, c.filter.UpTo})}
	if !dryRun {
		next.Fields = append(next.Fields, jobField{"count", q.query.Get("count")})
	}
	letters, book := q.op.DeadLetters(), q.book
	page, err := q.startJob(jobSpec{
		kind: "purge", title: "Purge " + visible(c.Words()) + " in " + c.queue, queues: []string{c.queue},
		verbs: []access.Verb{access.Operate}, dryRun: dryRun, back: q.backToLetters(), next: next,
		run: func(ctx context.Context, report func(jobCounts)) error {
			if !dryRun {
				return purgeMatching(ctx, letters, book, c, report)
			}
			counts, err := countMatching(ctx, letters, c, report)
			if err == nil { // the form is shown after the end of the job
				number := strconv.FormatInt(counts.Found, 10)
				next.Confirm = number
				next.Fields = append(next.Fields, jobField{"count", number})
			}
			return err
		},
	})
	return done{page: page}, err
}

// countMatching counts the letters that pass the filter.
func countMatching(
	ctx context.Context, letters *admin.DeadLetters, c chosen, report func(jobCounts),
) (jobCounts, error) {
	survey := letters.Survey(c.queue, c.filter)
	counts := jobCounts{Queue: c.queue}
	for {
		err := survey.Read(ctx, tellEvery)
		got := survey.Summary()
		counts.Looked, counts.Total = int64(got.Looked), int64(got.Total)
		counts.Found, counts.Changed = int64(got.Letters), int64(got.Letters)
		if got.Complete {
			counts.Total = counts.Looked
		}
		report(counts)
		if err != nil || got.Complete {
			return counts, err
		}
	}
}

// purgeMatching purges the letters that pass the filter.
func purgeMatching(
	ctx context.Context, letters *admin.DeadLetters, book *letterBook, c chosen, report func(jobCounts),
) error {
	defer book.change(c.queue)
	total, err := letters.Count(ctx, c.queue, admin.LetterFilter{})
	if err != nil {
		return err
	}
	counts := jobCounts{Total: int64(total), Queue: c.queue}
	purged := func(n int) {
		counts.Found, counts.Changed = int64(n), int64(n)
		counts.Looked = min(counts.Found, counts.Total)
		report(counts)
	}
	n, err := letters.PurgeProgress(ctx, c.queue, c.filter, purged)
	purged(n)
	if err == nil {
		counts.Looked = counts.Total
		report(counts)
	}
	return err
}
