package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/duestream/duestream/internal/resp"
)

const stopsAfter = 3 * time.Second // a worker may still read for this time after SIGTERM

// Rule is a rule that is checked in every case, by the commands of the program.
type Rule struct {
	Name    string `json:"name"`
	Level   Level  `json:"level"`   // it holds in cases of this level and of higher levels
	Section string `json:"section"` // of docs/reference/protocol.md
	Rule    string `json:"rule"`
}

// Rules returns the rules that are watched for a kind.
func Rules(kind Kind) []Rule {
	if kind == Worker {
		return slices.Concat(commonRules, workerRules)
	}
	return slices.Concat(commonRules, producerRules)
}

// ruleNamed returns a watched rule of a kind.
func ruleNamed(kind Kind, name string) Rule {
	all := Rules(kind)
	i := slices.IndexFunc(all, func(r Rule) bool { return r.Name == name })
	if i < 0 {
		panic("conformance: there is no rule " + name)
	}
	return all[i]
}

// broken is a broken rule, with the observation.
type broken struct {
	Rule
	seen string
}

func (e *broken) Error() string { return e.seen }

// watcher observes the commands of the programs of a trial. It never asks the server.
type watcher struct {
	kind   Kind
	level  Level // of the case
	prefix string
	began  time.Time

	mu        sync.Mutex
	all       []*sent              // all commands, in order
	first     *broken              // the first broken rule
	stopped   map[string]time.Time // time of SIGTERM, by program
	scheduled map[int][]string     // arguments of each ZADD of the open transaction, by connection
}

func newWatcher(kind Kind, level Level, prefix string) *watcher {
	return &watcher{
		kind: kind, level: level, prefix: prefix, began: time.Now(),
		stopped: map[string]time.Time{}, scheduled: map[int][]string{},
	}
}

// broke records that a rule was broken, unless the case is of a lower level. The caller holds w.mu.
func (w *watcher) broke(rule, format string, args ...any) {
	r := ruleNamed(w.kind, rule)
	if w.first == nil && r.Level <= w.level {
		w.first = &broken{r, fmt.Sprintf(format, args...)}
	}
}

// brokeBy records that a command broke a rule.
func (w *watcher) brokeBy(s *sent, rule, why string) {
	after := s.at.Sub(w.began).Round(time.Millisecond)
	w.broke(rule, "%s sent %s, %s after the case began: %s", s.program, s.text(), after, why)
}

// verdict returns the first broken rule, or nil.
func (w *watcher) verdict() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first == nil {
		return nil
	}
	return w.first
}

// sawCommand gets each command before the server gets it.
func (w *watcher) sawCommand(s *sent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, s)
	w.common(s)
	if w.kind == Worker {
		w.workerCommand(s)
	} else {
		w.producerCommand(s)
	}
}

// sawReply gets each command with its reply before the program gets the reply.
func (w *watcher) sawReply(s *sent, reply resp.Value) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.reply, s.answered = reply, true
}

// commands returns the commands that all programs have sent so far, in order.
func (w *watcher) commands() []*sent {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.all)
}

// text returns the command as a line, with long arguments cut.
func (s *sent) text() string {
	var b strings.Builder
	for i, arg := range s.args {
		if i == 12 {
			fmt.Fprintf(&b, " … (%d arguments)", len(s.args)-1)
			break
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		switch {
		case len(arg) > 120:
			fmt.Fprintf(&b, "%.100q…", arg)
		case arg == "" || strings.ContainsFunc(arg,
			func(r rune) bool { return r <= ' ' || r == '"' || r == '\\' || r > '~' }):
			fmt.Fprintf(&b, "%q", arg)
		default:
			b.WriteString(arg)
		}
	}
	return b.String()
}

// kindOf returns the kind of a duestream key, as section 3 names it: "due", "stream", …, "queues", "defaults"; or ""
// for any other key. For the key of a queue, it also returns the queue or partition.
func (w *watcher) kindOf(key string) (kind, queue string) {
	rest, ok := strings.CutPrefix(key, w.prefix+":")
	if !ok {
		return "", ""
	}
	if rest, ok = strings.CutPrefix(rest, "{"); !ok {
		return rest, ""
	}
	queue, kind, _ = strings.Cut(rest, "}:")
	return kind, queue
}

// commonRules apply to producers and workers.
var commonRules = []Rule{
	{"keeps-keys", Minimal, "3",
		"Keys of duestream have no expiry, and are not deleted, renamed or flushed by producers and workers."},
	{"keeps-streams", Minimal, "8 (MUST NOT)",
		"The entries of a stream are the bridges': no XADD, XDEL, XDELEX, XTRIM or XSETID on it by plain commands, " +
			"and no XACKDEL without ACKED."},
	{"keeps-groups", Minimal, "8 (MUST NOT)",
		"Groups stay, with what they have read: no XGROUP DESTROY, no XGROUP SETID."},
	{"keeps-registry", Minimal, "3 and 16",
		"The registry of queues is written by HSETNX with 1, or by the script register; settings are operators'."},
	{"keeps-server", Minimal, "3", "The server's settings, clients, scripts and functions are not a client's to change."},
}

// common checks the commands that no program may send.
func (w *watcher) common(s *sent) {
	switch s.name() {
	case "FLUSHALL", "FLUSHDB", "SWAPDB":
		w.brokeBy(s, "keeps-keys", "it deletes the keys of everybody")
		return
	case "SHUTDOWN", "DEBUG", "REPLICAOF", "SLAVEOF", "FAILOVER":
		w.brokeBy(s, "keeps-server", "it stops or changes the server")
		return
	case "CONFIG":
		if !s.is("CONFIG GET") {
			w.brokeBy(s, "keeps-server", "it changes the server for everybody")
		}
		return
	case "CLIENT":
		if s.is("CLIENT KILL") || s.is("CLIENT PAUSE") {
			w.brokeBy(s, "keeps-server", "it disturbs all clients")
		}
		return
	case "FUNCTION":
		if s.is("FUNCTION FLUSH") || s.is("FUNCTION DELETE") || s.is("FUNCTION RESTORE") {
			w.brokeBy(s, "keeps-server", "others call the functions that it removes")
		}
		return
	case "XGROUP":
		if s.is("XGROUP DESTROY") {
			w.brokeBy(s, "keeps-groups", "what the group had not acknowledged is lost")
		}
		if s.is("XGROUP SETID") {
			w.brokeBy(s, "keeps-groups", "what the group skips is lost, what it reads again is delivered twice")
		}
		return
	}
	for _, arg := range s.args[1:] {
		if kind, queue := w.kindOf(arg); kind != "" {
			w.onKey(s, kind, queue)
		}
	}
}

// onKey checks a plain command that names a key of duestream.
func (w *watcher) onKey(s *sent, kind, queue string) {
	switch s.name() {
	case "EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "GETEX", "SETEX", "PSETEX", "HEXPIRE", "HPEXPIRE",
		"HEXPIREAT", "HPEXPIREAT":
		w.brokeBy(s, "keeps-keys", "what expires is lost")
	case "DEL", "UNLINK", "RENAME", "RENAMENX", "MOVE", "RESTORE", "COPY", "SET", "MIGRATE":
		w.brokeBy(s, "keeps-keys", "what the key holds is lost")
	case "XADD", "XDEL", "XTRIM", "XSETID", "XDELEX", "XACKDEL":
		if kind == "stream" && !(w.kind == Worker && s.acknowledges()) {
			w.brokeBy(s, "keeps-streams", "what goes or comes there by a plain command has another group lose a message, "+
				"or get one that nobody scheduled")
		}
	case "HSET", "HMSET", "HDEL", "HINCRBY", "HSETNX":
		switch {
		case kind == "queues" && (s.name() != "HSETNX" || len(s.args) > 3 && s.args[3] != "1"):
			w.brokeBy(s, "keeps-registry", "partition counts that it held are lost, or new ones have no groups yet")
		case kind == "defaults" && queue == "" || kind == "policy":
			w.brokeBy(s, "keeps-registry", "it changes the settings of everybody")
		}
	}
}

// acknowledges reports whether the command is an XACKDEL with ACKED, and with none of the options that delete an entry
// under other groups. The options may stand before and behind the list of entries.
func (s *sent) acknowledges() bool {
	if !s.is("XACKDEL") {
		return false
	}
	acked := false
	for i := 3; i < len(s.args); i++ {
		switch option := strings.ToUpper(s.args[i]); option {
		case "ACKED":
			acked = true
		case "KEEPREF", "DELREF":
			return false
		case "IDS":
			n, err := strconv.Atoi(s.arg(i + 1))
			if err != nil || n < 0 || n > len(s.args) {
				return false
			}
			i += 1 + n
		}
	}
	return acked
}

// workerRules apply to workers.
var workerRules = []Rule{
	{"no-claims", Minimal, "8 (MUST NOT)",
		"A worker claims nothing of other consumers, and nothing without JUSTID: each such claim counts as an attempt."},
	{"no-plain-retries", Minimal, "9",
		"A worker schedules and dead-letters by the scripts or functions only: by plain commands the message can be lost, " +
			"or delivered twice over."},
	{"stops-reading", Good, "8, step 9", "After SIGTERM a worker reads nothing more."},
}

// stops records that a program was sent SIGTERM.
func (w *watcher) stops(program string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped[program] = time.Now()
}

// workerCommand checks a command by the rules of workers.
func (w *watcher) workerCommand(s *sent) {
	switch s.name() {
	case "XREADGROUP":
		if at, stopped := w.stopped[s.program]; stopped && s.at.Sub(at) > stopsAfter {
			w.brokeBy(s, "stops-reading", fmt.Sprintf("that is %s after SIGTERM", s.at.Sub(at).Round(time.Millisecond)))
		}
		if s.has("CLAIM") {
			w.brokeBy(s, "no-claims", "it takes what other consumers hold")
		}
	case "XAUTOCLAIM":
		w.brokeBy(s, "no-claims", "it takes what other consumers hold")
	case "XCLAIM":
		if !s.has("JUSTID") {
			w.brokeBy(s, "no-claims", "without JUSTID it counts as an attempt")
		}
		if s.has("FORCE") || s.has("RETRYCOUNT") || s.has("LASTID") {
			w.brokeBy(s, "no-claims", "it changes more than the idle time of what it holds")
		}
	case "XNACK":
		if s.has("FORCE") || s.has("RETRYCOUNT") {
			w.brokeBy(s, "no-claims", "it changes more than XNACK does to what the worker holds")
		}
	case "ZADD", "ZREM", "ZINCRBY", "HSET", "HMSET", "HSETNX", "HDEL", "XADD", "XDEL", "XTRIM":
		if kind, _ := w.kindOf(s.arg(1)); slices.Contains([]string{"due", "payload", "meta", "dead", "seen"}, kind) {
			w.brokeBy(s, "no-plain-retries", "acknowledging and scheduling have to be one step")
		}
	}
}

// has reports whether an XREADGROUP or XCLAIM has an option. It skips the first words, where a group or consumer could
// have the name of an option.
func (s *sent) has(option string) bool {
	return slices.ContainsFunc(s.args[min(4, len(s.args)):],
		func(arg string) bool { return strings.EqualFold(arg, option) })
}

// producerRules apply to producers.
var producerRules = []Rule{
	{"writes-whole", Good, "7, steps 1 to 4",
		"A producer writes payload and meta before the due time, all in one MULTI or one script. " +
			"This holds for every message, also when the producer repeats it."},
	{"takes-nothing-out", Good, "6 and 7",
		"A producer that schedules takes nothing out of the schedule and out of the dead letters."},
}

// producerCommand checks a command by the rules of producers.
func (w *watcher) producerCommand(s *sent) {
	kind, queue := w.kindOf(s.arg(1))
	isField := (kind == "payload" || kind == "meta") && slices.Contains([]string{"HSET", "HMSET", "HSETNX"}, s.name())
	isDue := kind == "due" && s.is("ZADD")
	switch {
	case s.is("MULTI"):
		delete(w.scheduled, s.conn)
	case !s.inMulti && (isField || isDue):
		w.brokeBy(s, "writes-whole", "it stands outside a MULTI, so a bridge may see a part of the message")
	case isDue:
		w.scheduled[s.conn] = append(w.scheduled[s.conn], s.args[2:]...)
	case isField && slices.Contains(w.scheduled[s.conn], s.arg(2)):
		w.brokeBy(s, "writes-whole", "it stands behind the ZADD of the message")
	case kind == "due" && slices.Contains([]string{"ZREM", "ZPOPMIN", "ZPOPMAX", "BZPOPMIN", "BZPOPMAX",
		"ZREMRANGEBYSCORE", "ZREMRANGEBYRANK", "ZREMRANGEBYLEX"}, s.name()):
		w.brokeBy(s, "takes-nothing-out", "a message that was taken is not delivered then, and nothing was to be cancelled")
	case kind == "dead" && strings.HasPrefix(s.name(), "X") &&
		!slices.Contains([]string{"XRANGE", "XREVRANGE", "XLEN", "XINFO", "XREAD"}, s.name()):
		w.brokeBy(s, "takes-nothing-out", "dead letters are written by bridges and by workers that call the scripts")
	case kind == "bridges" && queue == "" && strings.HasPrefix(s.name(), "ZADD"):
		w.brokeBy(s, "takes-nothing-out", "a bridge that does not live is given queues to look after")
	}
}
