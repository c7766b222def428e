package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/lua"
)

const (
	judgedPart = 0.6             // an acknowledgement is early if less than this share of the work's time has passed, …
	judgedRest = time.Second     // … and more than this is left: a busy kit hears late that the work began
	stopsAfter = 3 * time.Second // latest read after SIGTERM
)

// workerRules apply to workers.
var workerRules = []Rule{
	{"own-name", Minimal, "8, step 2", "A worker reads and acknowledges as the group and the consumer that it was told to be."},
	{"acknowledged-reads", Minimal, "8 (MUST NOT)", "A worker never reads with NOACK: what it then loses, nobody gets."},
	{"group-at-zero", Minimal, "8, step 1", "A worker creates groups at 0, whenever it does, not at $ or elsewhere: what is in the stream already would be lost."},
	{"no-claims", Minimal, "8 (MUST NOT)", "A worker claims nothing of other consumers, and nothing without JUSTID: each such claim counts as an attempt."},
	{"keeps-consumers", Minimal, "8 (MUST NOT)", "No XGROUP DELCONSUMER of a consumer that has anything pending: nobody gets it again."},
	{"no-plain-retries", Minimal, "9", "A worker schedules and dead-letters by the scripts or functions only: by plain commands the message can be lost, or delivered twice over."},
	{"begins-what-it-got", Minimal, "8, steps 2 and 4", "A worker works on what a read of its own gave it, once for each time that it was given."},
	{"as-given", Minimal, "5", "Message ID, attempt, payload and headers are those of the entry."},
	{"acks-its-own", Minimal, "8, step 5", "A worker acknowledges, retries and releases what it was given, and nothing else."},
	{"acks-after-work", Minimal, "8, step 5", "A worker acknowledges a message when its work is done: not before it began, not half-way, not without having begun."},
	{"acks-no-failure", Minimal, "8, step 6", "What failed is not acknowledged, whichever attempt it was."},
	{"skips-others", Good, "8, step 3", "An entry whose field for names another group is not worked on; one whose for is empty, or its own group, is."},
	{"finishes", Good, "8, step 9", "At SIGTERM a worker finishes what it has begun, and acknowledges it, before it ends."},
	{"stops-reading", Good, "8, step 9", "After SIGTERM a worker reads nothing more."},
}

// worklog is the state that a watcher keeps of workers.
type worklog struct {
	group    map[string]string // by program
	consumer map[string]string
	stopped  map[string]time.Time // time of SIGTERM
	unknown  map[string]bool      // it runs scripts of its own, so the kit cannot know its entries
	given    map[[3]string]*given // by group, stream, entry
	order    []*given
}

// given is an entry that was given to a consumer.
type given struct {
	group, stream, entry, consumer string
	fields                         map[string]string

	reads  map[string]int     // by program: how often it was shown the entry
	begun  map[string][]begun // by program: lines of begun work on the entry
	acked  map[string]time.Time
	closed bool // retried, dead-lettered or released
	lost   bool // the worker was told that it no longer holds the entry
}

func (g *given) id() string {
	if id, ok := g.fields[lua.FieldID]; ok {
		return id
	}
	return g.entry
}

func (g *given) attempt() int {
	if n, err := strconv.Atoi(g.fields[lua.FieldAttempt]); err == nil && n > 0 {
		return n
	}
	return 1
}

func (g *given) isFor(group string) bool {
	to := g.fields[lua.FieldFor]
	return to == "" || to == group
}

func (g *given) headers() map[string]string {
	all := map[string]string{}
	for name, value := range g.fields {
		if header, ok := strings.CutPrefix(name, lua.HeaderPrefix); ok {
			all[header] = value
		}
	}
	return all
}

// work returns the duration of the work that an entry asks for, and whether it fails.
func (g *given) work() (takes time.Duration, fails bool) {
	what, text, _ := strings.Cut(g.fields[lua.HeaderPrefix+"work"], " ")
	n, _ := strconv.Atoi(text)
	switch what {
	case "slow":
		return time.Duration(n) * time.Millisecond, false
	case "fail":
		return 0, g.attempt() <= n
	case "retry":
		return 0, g.attempt() == 1
	case "dead":
		return 0, true
	}
	return 0, false
}

// starts records the group and the consumer of a program.
func (w *watcher) starts(program, group, consumer string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.work.group == nil {
		w.work = worklog{
			group: map[string]string{}, consumer: map[string]string{}, stopped: map[string]time.Time{},
			unknown: map[string]bool{}, given: map[[3]string]*given{},
		}
	}
	w.work.group[program], w.work.consumer[program] = group, consumer
}

// stops records that a program was sent SIGTERM.
func (w *watcher) stops(program string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.work.stopped != nil {
		w.work.stopped[program] = time.Now()
	}
}

func (w *watcher) workerAsked(s *sent) {
	switch s.name() {
	case "XREADGROUP":
		w.reads(s)
	case "XAUTOCLAIM":
		w.brokeBy(s, "no-claims", "it takes what other consumers hold")
	case "XCLAIM":
		w.claims(s)
	case "XACK":
		if len(s.args) > 3 {
			w.leaves(s, s.args[1], s.args[2], s.args[3:], true)
		}
	case "XGROUP":
		if s.is("XGROUP CREATE") && len(s.args) > 4 && s.args[4] != "0" && s.args[4] != "0-0" {
			w.brokeBy(s, "group-at-zero", "what is in the stream already is lost to the group")
		}
	case "ZADD", "ZREM", "ZINCRBY", "HSET", "HMSET", "HSETNX", "HDEL", "XADD", "XDEL", "XTRIM":
		if kind, _ := w.kindOf(append(s.args, "")[1]); slices.Contains([]string{"due", "payload", "meta", "dead", "seen"}, kind) {
			w.brokeBy(s, "no-plain-retries", "acknowledging and scheduling have to be one step")
		}
	case "FCALL", "EVALSHA", "EVAL":
		w.calls(s)
	}
}

func (w *watcher) reads(s *sent) {
	if len(s.args) < 4 {
		return
	}
	if s.args[2] != w.work.group[s.program] || s.args[3] != w.work.consumer[s.program] {
		w.brokeBy(s, "own-name", fmt.Sprintf("it was told to be group %q, consumer %q", w.work.group[s.program], w.work.consumer[s.program]))
	}
	for _, arg := range s.args[4:] {
		switch strings.ToUpper(arg) {
		case "NOACK":
			w.brokeBy(s, "acknowledged-reads", "what it is given is not pending for anybody")
		case "CLAIM":
			w.brokeBy(s, "no-claims", "it takes what other consumers hold")
		case "STREAMS":
			if at, stopped := w.work.stopped[s.program]; stopped && s.at.Sub(at) > stopsAfter {
				w.brokeBy(s, "stops-reading", fmt.Sprintf("that is %s after SIGTERM", s.at.Sub(at).Round(time.Millisecond)))
			}
			return
		}
	}
}

func (w *watcher) claims(s *sent) {
	if len(s.args) < 6 {
		return
	}
	entries, options := s.args[5:], []string(nil)
	for i, arg := range entries {
		if arg != "" && !strings.ContainsAny(arg[:1], "0123456789") {
			entries, options = entries[:i], entries[i:]
			break
		}
	}
	just := false
	for _, option := range options {
		switch strings.ToUpper(option) {
		case "JUSTID":
			just = true
		case "FORCE", "RETRYCOUNT", "LASTID":
			w.brokeBy(s, "no-claims", "it changes more than the idle time of what it holds")
		}
	}
	if !just {
		w.brokeBy(s, "no-claims", "without JUSTID it counts as an attempt")
	}
	if s.args[2] != w.work.group[s.program] || s.args[3] != w.work.consumer[s.program] {
		w.brokeBy(s, "no-claims", "it is not for its own consumer of its own group")
	}
	for _, entry := range entries {
		if !w.holds(s, s.args[1], entry) {
			w.brokeBy(s, "no-claims", entry+" was not given to this consumer")
		}
	}
}

// holds reports whether an entry was given to the consumer of a program. It also returns true if the kit cannot know.
func (w *watcher) holds(s *sent, stream, entry string) bool {
	g := w.work.given[[3]string{w.work.group[s.program], stream, entry}]
	return g != nil && g.consumer == w.work.consumer[s.program] || w.work.unknown[s.program]
}

// leaves checks a command that removes entries from the pending list. done is set for an acknowledgement.
func (w *watcher) leaves(s *sent, stream, group string, entries []string, done bool) {
	if group != w.work.group[s.program] {
		w.brokeBy(s, "own-name", fmt.Sprintf("it was told to be of group %q", w.work.group[s.program]))
		return
	}
	for _, entry := range entries {
		if entry == "0-0" {
			continue // 0-0 is no entry: the call makes a full server writable again
		}
		if !w.holds(s, stream, entry) {
			w.brokeBy(s, "acks-its-own", entry+" was not given to this consumer")
		}
		g := w.work.given[[3]string{group, stream, entry}]
		switch {
		case g == nil:
		case !done:
			g.closed = true
		default:
			if _, again := g.acked[s.program]; !again {
				g.acked[s.program] = s.at
				w.acknowledges(s, g)
			}
		}
	}
}

// acknowledges checks an acknowledgement. The line about the begin of the work may arrive later: see final.
func (w *watcher) acknowledges(s *sent, g *given) {
	if !g.isFor(g.group) {
		return
	}
	if _, fails := g.work(); fails {
		w.brokeBy(s, "acks-no-failure", fmt.Sprintf("that is message %q, of which attempt %d was to fail", g.id(), g.attempt()))
	}
	w.inTime(s.program, g)
}

// inTime checks the time of an acknowledgement, once the begin of the work is known.
func (w *watcher) inTime(program string, g *given) {
	all := g.begun[program]
	at, acked := g.acked[program]
	takes, _ := g.work()
	if len(all) == 0 || !acked {
		return
	}
	if had := at.Sub(all[len(all)-1].at); takes > 0 &&
		had+w.stalls.before(all[len(all)-1].at) < min(time.Duration(judgedPart*float64(takes)), takes-judgedRest) {
		w.broke("acks-after-work", "%s acknowledged entry %s, of message %q, %s after the case began: its work takes %s, and had been under way for %s",
			program, g.entry, g.id(), at.Sub(w.began).Round(time.Millisecond), takes, max(0, had).Round(time.Millisecond))
	}
}

// begins checks a line of a worker.
func (w *watcher) begins(program string, b begun) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.work.unknown[program] {
		return
	}
	var other, again, foreign, fits *given
	for _, g := range w.work.order {
		switch {
		case g.reads[program] == 0 || g.id() != b.ID && utf8.ValidString(g.id()):
		case !g.isFor(g.group):
			foreign = g
		case len(g.begun[program]) >= g.reads[program]:
			again = g
		case g.attempt() != b.Attempt:
			other = g
		case fits == nil || !fits.says(b) && g.says(b):
			fits = g
		}
	}
	what := fmt.Sprintf("%s began message %q with attempt %d", program, b.ID, b.Attempt)
	switch {
	case fits != nil:
		fits.begun[program] = append(fits.begun[program], b)
		w.inTime(program, fits)
		w.compare(what, fits, b)
	case foreign != nil:
		w.broke("skips-others", "%s: its entry %s is for group %q", what, foreign.entry, foreign.fields[lua.FieldFor])
	case other != nil:
		w.broke("as-given", "%s: its entry %s has attempt %q", what, other.entry, other.fields[lua.FieldAttempt])
	case again != nil:
		w.broke("begins-what-it-got", "%s: entry %s came %s, and was begun as often before", what, again.entry, times(again.reads[program]))
	default:
		w.broke("begins-what-it-got", "%s: it was given no such message", what)
	}
}

func (g *given) says(b begun) bool {
	return string(b.Payload) == g.fields[lua.FieldPayload] && maps.Equal(b.Headers, g.headers())
}

func (w *watcher) compare(what string, g *given, b begun) {
	if got, want := string(b.Payload), g.fields[lua.FieldPayload]; got != want {
		w.broke("as-given", "%s: the payload has %d bytes, %s; its entry %s has %d", what, len(got), difference(got, want), g.entry, len(want))
	}
	want := g.headers()
	for name, value := range want {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return // JSON cannot carry these headers of a foreign entry
		}
	}
	if !maps.Equal(b.Headers, want) {
		w.broke("as-given", "%s: its headers are %.500q; its entry %s has %.500q", what, b.Headers, g.entry, want)
	}
}

// final makes the checks that need all output of all programs, after they ended.
func (w *watcher) final() error {
	w.mu.Lock()
	for _, g := range w.work.order {
		for program, at := range g.acked {
			if len(g.begun[program]) == 0 && g.isFor(g.group) && !w.work.unknown[program] {
				w.broke("acks-after-work", "%s acknowledged entry %s, %s after the case began, and never began its message %q", program, g.entry,
					at.Sub(w.began).Round(time.Millisecond), g.id())
			}
		}
	}
	w.mu.Unlock()
	return w.verdict()
}

// ended checks a worker that has ended after SIGTERM.
func (w *watcher) ended(program string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, g := range w.work.order {
		all := g.begun[program]
		_, acked := g.acked[program]
		if _, fails := g.work(); len(all) == 0 || acked || g.closed || g.lost || fails {
			continue
		}
		takes, _ := g.work()
		w.broke("finishes", "%s ended after SIGTERM without having acknowledged, or released, message %q, whose work of %s it began %s before", program, g.id(),
			takes, time.Since(all[len(all)-1].at).Round(time.Millisecond))
	}
}
