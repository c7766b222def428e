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

// Config configures Examine. Client is required.
type Config struct {
	Client rueidis.Client // not closed by Examine
	Prefix string         // default "duestream"

	Queues []string // the queues to examine; none = all queues that are registered or have keys
	Quick  bool     // read counts and samples instead of everything
	// Release is the release of this program, to compare with that of the library of functions. With "" Examine can
	// only tell whether the library differs.
	Release string

	// Progress is called with the present step and how far it has come. of is 0 if the total is unknown. Nil = no call.
	Progress func(step string, done, of int)

	// Settle is the time between the two checks of a suspected defect. Default 3s. Too low: keys in transition are
	// reported.
	Settle time.Duration
	// FreeWithin is how long bridges may take to free an entry that no group needs. Default 20s. A bridge that keeps
	// up takes at most 6s.
	FreeWithin time.Duration
	// OrphanAge is how long a body must have had no member before a repair deletes it: a producer may be about to add
	// the member. Default a minute, as the protocol says.
	OrphanAge time.Duration
	// Idle is how long a consumer that holds nothing may be idle. Default 2h. Bridges remove such consumers after an
	// hour.
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

// Validate returns every fault of the configuration. It does not touch Redis.
func (c Config) Validate() error {
	errs := []error{lua.CheckPrefix(cmp.Or(c.Prefix, lua.DefaultPrefix))}
	for _, queue := range c.Queues {
		errs = append(errs, lua.CheckQueue(queue))
	}
	return errors.Join(errs...)
}

// Finding is a defect at one place.
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
	Repair   string   `json:"repair,omitempty"` // what a repair does; "" = there is none

	mend mend
}

// mend repairs a defect, and returns what it did.
type mend func(ctx context.Context) (did string, err error)

// mendedBy sets the repair of a finding. The finding may be nil.
func (f *Finding) mendedBy(m mend) *Finding {
	if f != nil {
		f.mend = m
	}
	return f
}

// Report is the result of an examination.
type Report struct {
	Servers    []Server   `json:"servers"`
	Queues     int        `json:"queues"`
	Partitions int        `json:"partitions"`
	Quick      bool       `json:"quick,omitempty"`
	Patience   []Patience `json:"patience"` // of each queue
	Findings   []Finding  `json:"findings"`
	LeftOut    []string   `json:"left_out"` // parts that were not examined, and why
}

// Patience tells about how long a message that always fails is retried before it is a dead letter, by the policy of
// its queue.
type Patience struct {
	Queue       string `json:"queue"`
	MaxAttempts int    `json:"max_attempts"`
	TriedFor    int64  `json:"tried_for_ms"`
}

// CountAtLeast returns how many findings have the given severity or a worse one.
func (r Report) CountAtLeast(least Severity) (n int) {
	for _, f := range r.Findings {
		if f.Severity >= least {
			n++
		}
	}
	return n
}

// place is a partition of a queue. A place without a queue stands for the keys that all queues share.
type place struct {
	queue     string
	partition int
	keys      lua.Keys
}

// name returns the name of the partition.
func (p place) name() string { return lua.PartitionName(p.queue, p.partition) }

// examination is one run of Examine.
type examination struct {
	Config
	c        rueidis.Client
	globals  lua.Globals
	masters  map[string]rueidis.Client
	report   Report
	suspects []*suspect
	registry map[string]lua.Counts
	found    map[string]map[int]bool // queue → partitions that have keys
	walked   bool                    // the map found was filled by a scan of all keys
	now      time.Time               // the server's time when the examination of a partition began

	// lastStart is the start of the server or the start of the oldest live bridge, whichever is later; zero = unknown.
	lastStart time.Time
}

// Examine checks the server and the queues, waits, and checks suspected defects again. It writes nothing. ErrNoQueue: a
// queue of the configuration does not exist. The duration of Examine grows with the numbers of scheduled messages,
// pending entries and dead letters, unless Quick is set.
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
		(*look).queues, (*look).recheck} {
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

// wait waits, and reports progress every second.
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

// leftOut reports a part that the doctor did not examine.
func (e *examination) leftOut(format string, args ...any) {
	e.report.LeftOut = append(e.report.LeftOut, fmt.Sprintf(format, args...))
}

// ErrNoQueue: a queue of the configuration is not registered and has no keys.
var ErrNoQueue = scheduler.ErrNoQueue

// examples is the greatest number of examples in a finding.
const examples = 3

// finding returns a finding of a check at a place, with the texts of the check. key and group are "" if the finding is
// not about a key or a group. count is the number of faulty items, and some are examples of them.
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

// serverFinding returns a finding that belongs to no queue and no key.
func (e *examination) serverFinding(c *Check, count int64, found string, some ...string) *Finding {
	return e.finding(c, place{}, "", "", count, found, some...)
}

// counted returns a finding with a count of n; nil if n is 0.
func (e *examination) counted(c *Check, p place, key, group string, n int64, one, many string, some ...string) *Finding {
	if n == 0 {
		return nil
	}
	return e.finding(c, p, key, group, n, plural(n, one, many), some...)
}

// listed returns a finding for the items of a list; nil if the list is empty.
func (e *examination) listed(c *Check, p place, key, group string, list []string, one, many string) *Finding {
	return e.counted(c, p, key, group, int64(len(list)), one, many, list...)
}

// add reports a finding.
func (e *examination) add(f *Finding) { e.report.Findings = append(e.report.Findings, *f) }

// shown returns another program's text in a readable form that is safe to paste into a shell.
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

// printable returns a text, quoted if it holds characters that could change the terminal.
func printable(text string) string {
	if len(text) > 300 || !utf8.ValidString(text) ||
		strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return shown(text)
	}
	return text
}

// plural returns a count with its noun: "1 entry", "2 entries".
func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.FormatInt(n, 10) + " " + many
}
