package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
	"github.com/duestream/duestream/stream/keeper"
)

// Config says what to look at, and how patiently.
type Config struct {
	Client rueidis.Client // closed by whoever made it
	Prefix string         // default duestream

	Queues []string // only these; none: all that are registered, or that have keys
	Quick  bool     // counts and samples instead of everything
	// Release is that of this program, to compare the library of functions with; "" knows only whether it differs.
	Release string

	// Progress, unless nil, is told what the doctor looks at, how much of that is done, and of how much; of is 0 where nobody
	// knows.
	Progress func(step string, done, of int)

	// Settle lies between the two looks at what seems wrong. Default 3s. Less finds what is only in transition.
	Settle time.Duration
	// FreeWithin is how long bridges may take to free what no group needs. Default 20s; they take 6s at most when they keep up.
	FreeWithin time.Duration
	// OrphanAge is how long a body must have been without a member before a repair deletes it: a producer may be about to add the
	// member. Default, and protocol: a minute.
	OrphanAge time.Duration
	// Idle is how long a consumer that holds nothing may be idle. Default 2h; bridges remove such after an hour.
	Idle time.Duration
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, lua.DefaultPrefix)
	c.Settle = cmp.Or(c.Settle, 3*time.Second)
	c.FreeWithin = cmp.Or(c.FreeWithin, 20*time.Second)
	c.OrphanAge = cmp.Or(c.OrphanAge, keeper.OrphanAge)
	c.Idle = cmp.Or(c.Idle, 2*time.Hour)
	if c.Progress == nil {
		c.Progress = func(string, int, int) {}
	}
	return c
}

// Validate names all that is wrong with the configuration. It does not touch Redis.
func (c Config) Validate() error {
	errs := []error{lua.CheckPrefix(cmp.Or(c.Prefix, lua.DefaultPrefix))}
	for _, queue := range c.Queues {
		errs = append(errs, lua.CheckQueue(queue))
	}
	return errors.Join(errs...)
}

// Finding is one thing that is wrong, at one place.
type Finding struct {
	Code     string   `json:"code"`
	Name     string   `json:"name"`
	Severity Severity `json:"severity"`
	Queue    string   `json:"queue,omitempty"`
	Key      string   `json:"key,omitempty"`
	Group    string   `json:"group,omitempty"`
	Found    string   `json:"found"`
	Count    int64    `json:"count"`
	Examples []string `json:"examples,omitempty"`
	Why      string   `json:"why"`
	Do       string   `json:"do"`
	Repair   string   `json:"repair,omitempty"` // what a repair does; empty: nothing

	mend mend
}

// mend repairs what was found.
type mend func(ctx context.Context) (did string, err error)

// mendedBy adds the repair, where there is a finding.
func (f *Finding) mendedBy(m mend) *Finding {
	if f != nil {
		f.mend = m
	}
	return f
}

// Report is what an examination found.
type Report struct {
	Servers    []Server   `json:"servers"`
	Queues     int        `json:"queues"`
	Partitions int        `json:"partitions"`
	Quick      bool       `json:"quick,omitempty"`
	Patience   []Patience `json:"patience"` // of each queue
	Findings   []Finding  `json:"findings"`
	LeftOut    []string   `json:"left_out"` // what was not looked at, and why
}

// Patience is how long a message that always fails is tried until it is a dead letter: about, by the policy of its queue.
type Patience struct {
	Queue       string `json:"queue"`
	MaxAttempts int    `json:"max_attempts"`
	TriedFor    int64  `json:"tried_for_ms"`
}

// Worst returns how many findings are of a severity, or a worse one.
func (r Report) Worst(than Severity) (n int) {
	for _, f := range r.Findings {
		if f.Severity >= than {
			n++
		}
	}
	return n
}

// place is a partition of a queue. What all queues share is a place without a queue.
type place struct {
	queue     string
	partition int
	keys      lua.Keys
}

// name is what the partition is called.
func (p place) name() string { return lua.PartitionName(p.queue, p.partition) }

// examination is one run over everything.
type examination struct {
	Config
	c        rueidis.Client
	globals  lua.Globals
	masters  map[string]rueidis.Client
	report   Report
	suspects []*suspect
	registry map[string]lua.Counts
	found    map[string]map[int]bool // queue → partitions that have keys, by a walk through all keys
	walked   bool
	calm     time.Time // since when the server and the bridges have run without a break, as far as they tell
	now      time.Time // of the server, when the look at a partition began
}

// Examine looks at everything, waits, and looks again at what seemed wrong. It writes nothing. ErrNoQueue: a queue of the
// configuration does not exist. The time it takes grows with what is scheduled, pending and dead, unless Quick.
func Examine(ctx context.Context, cfg Config) (Report, error) {
	if err := cfg.Validate(); err != nil {
		return Report{}, err
	}
	cfg = cfg.withDefaults()
	e := &examination{
		Config: cfg, c: cfg.Client, globals: lua.NewGlobals(cfg.Prefix), found: map[string]map[int]bool{},
		report: Report{Quick: cfg.Quick, Patience: []Patience{}, Findings: []Finding{}, LeftOut: []string{}},
	}
	l := &look{e, ctx, nil}
	for _, step := range []func(*look){(*look).servers, (*look).functions, (*look).shared, (*look).bridges, (*look).walk,
		(*look).queues, (*look).lookAgain} {
		if step(l); l.err != nil {
			return e.report, l.err
		}
	}
	slices.SortStableFunc(e.report.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Queue, b.Queue),
			cmp.Compare(a.Key, b.Key), cmp.Compare(a.Group, b.Group))
	})
	slices.Sort(e.report.LeftOut)
	e.report.LeftOut = slices.Compact(e.report.LeftOut)
	for i := range e.report.Findings {
		if f := &e.report.Findings[i]; f.mend == nil {
			f.Repair = ""
		}
	}
	return e.report, nil
}

// wait waits, and shows every second that it does.
func (e *examination) wait(ctx context.Context, what string, d time.Duration) error {
	for waited := time.Duration(0); waited < d; waited += time.Second {
		if waited > 0 {
			e.Progress(what+", seconds waited", int(waited.Seconds()), int(d.Seconds()))
		}
		if !loop.Sleep(ctx, min(time.Second, d-waited)) {
			return ctx.Err()
		}
	}
	return nil
}

// leftOut says what the doctor did not look at.
func (e *examination) leftOut(format string, args ...any) {
	e.report.LeftOut = append(e.report.LeftOut, fmt.Sprintf(format, args...))
}

// ErrNoQueue: a queue that was asked for is not registered, and has no keys.
var ErrNoQueue = scheduler.ErrNoQueue

const examples = 3

// finding is what a check found at a place, with the texts of the check.
func (e *examination) finding(c *Check, p place, key, group string, count int64, found string, some ...string) *Finding {
	n := max(e.registry[p.queue].Latest(), p.partition+1)
	fill := strings.NewReplacer("{queue}", cmp.Or(p.queue, "<queue>"), "{key}", "'"+key+"'", "{group}", shown(group), "{n}",
		strconv.Itoa(n), "{registry}", "'"+e.globals.Queues+"'")
	f := &Finding{
		Code: c.Code, Name: c.Name, Severity: c.Severity, Queue: p.queue, Key: key, Group: group, Found: found, Count: count,
		Why: c.Why, Do: fill.Replace(c.Do), Repair: c.Mends,
	}
	for _, one := range some[:min(examples, len(some))] {
		f.Examples = append(f.Examples, printable(one))
	}
	return f
}

// counted is a finding of so many things; nil when there is none.
func (e *examination) counted(c *Check, p place, key, group string, n int64, one, many string, some ...string) *Finding {
	if n == 0 {
		return nil
	}
	return e.finding(c, p, key, group, n, plural(n, one, many), some...)
}

// listed is a finding of the things of a list; nil when there is none.
func (e *examination) listed(c *Check, p place, key, group string, list []string, one, many string) *Finding {
	return e.counted(c, p, key, group, int64(len(list)), one, many, list...)
}

// add reports a finding.
func (e *examination) add(f *Finding) { e.report.Findings = append(e.report.Findings, *f) }

// shown returns foreign text as people can read it, and a shell cannot misread it.
func shown(text string) string {
	const most = 120
	if len(text) > most {
		return fmt.Sprintf("%.*q… (%d bytes)", most, text[:most], len(text))
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("'\"\\$`", r) }) ||
		text == "" {
		return strconv.Quote(text)
	}
	return text
}

// printable returns text without what would change a terminal.
func printable(text string) string {
	if len(text) > 300 || !utf8.ValidString(text) ||
		strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return shown(text)
	}
	return text
}

// plural is "1 entry", "2 entries".
func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.FormatInt(n, 10) + " " + many
}
