package conformance

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Rule is a rule that is checked in every case, by the commands of the program and their replies.
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

// watcher observes the commands and replies of the programs of a trial. It never asks the server.
type watcher struct {
	kind   Kind
	level  Level // of the case
	prefix string
	began  time.Time
	stalls *stalls

	mu      sync.Mutex
	all     []*sent // all commands, in order
	first   *broken // the first broken rule
	work    worklog // of workers only
	produce producelog
}

func newWatcher(kind Kind, level Level, prefix string) *watcher {
	return &watcher{kind: kind, level: level, prefix: prefix, began: time.Now(), stalls: newStalls(), produce: newProducelog()}
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
	w.broke(rule, "%s sent %s, %s after the case began: %s", s.program, s.text(), s.at.Sub(w.began).Round(time.Millisecond), why)
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

// asked gets each command before the server gets it.
func (w *watcher) asked(s *sent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, s)
	w.common(s)
	if w.kind == Worker {
		w.workerAsked(s)
	} else {
		w.producerAsked(s)
	}
}

// told gets each command with its reply before the program gets the reply.
func (w *watcher) told(s *sent, reply value) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.reply, s.answered = reply, true
	if w.kind == Worker {
		w.workerTold(s)
	} else {
		w.producerTold(s)
	}
}

// commands returns the commands that a program has sent so far, in order; for "" those of all programs.
func (w *watcher) commands(program string) (some []*sent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.all {
		if program == "" || s.program == program {
			some = append(some, s)
		}
	}
	return some
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
		case arg == "" || strings.ContainsFunc(arg, func(r rune) bool { return r <= ' ' || r == '"' || r == '\\' || r > '~' }):
			fmt.Fprintf(&b, "%q", arg)
		default:
			b.WriteString(arg)
		}
	}
	if s.script != "" {
		fmt.Fprintf(&b, " (inside %s)", s.script)
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
	{"keeps-keys", Minimal, "3", "Keys of duestream have no expiry, and are not deleted, renamed or flushed by producers and workers."},
	{"keeps-streams", Minimal, "8 (MUST NOT)", "The entries of a stream are the bridges': no XADD, XDEL, XTRIM or XSETID on it by plain commands."},
	{"keeps-groups", Minimal, "8 (MUST NOT)", "Groups stay, with what they have read: no XGROUP DESTROY, no XGROUP SETID."},
	{"keeps-registry", Minimal, "3 and 16", "The registry of queues is written by HSETNX with 1, or by the script register; settings are operators'."},
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
	for _, key := range s.args[1:min(len(s.args), 1+keysOf[s.name()])] {
		if kind, queue := w.kindOf(key); kind != "" {
			w.onKey(s, kind, queue)
		}
	}
}

// keysOf maps a command that is checked by its keys to the largest number of its keys.
var keysOf = map[string]int{
	"EXPIRE": 1, "PEXPIRE": 1, "EXPIREAT": 1, "PEXPIREAT": 1, "GETEX": 1, "SETEX": 1, "PSETEX": 1, "HEXPIRE": 1, "HPEXPIRE": 1, "HEXPIREAT": 1, "HPEXPIREAT": 1,
	"DEL": 1 << 20, "UNLINK": 1 << 20, "RENAME": 2, "RENAMENX": 2, "MOVE": 1, "RESTORE": 1, "COPY": 2, "SET": 1, "MIGRATE": 3,
	"XADD": 1, "XDEL": 1, "XTRIM": 1, "XSETID": 1, "XDELEX": 1, "XACKDEL": 1, "HSET": 1, "HMSET": 1, "HDEL": 1, "HSETNX": 1, "HINCRBY": 1,
}

func (w *watcher) onKey(s *sent, kind, queue string) {
	switch s.name() {
	case "EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "GETEX", "SETEX", "PSETEX", "HEXPIRE", "HPEXPIRE",
		"HEXPIREAT", "HPEXPIREAT":
		w.brokeBy(s, "keeps-keys", "what expires is lost")
	case "DEL", "UNLINK", "RENAME", "RENAMENX", "MOVE", "RESTORE", "COPY", "SET", "MIGRATE":
		w.brokeBy(s, "keeps-keys", "what the key holds is lost")
	case "XADD", "XDEL", "XTRIM", "XSETID", "XDELEX", "XACKDEL":
		if kind == "stream" {
			w.brokeBy(s, "keeps-streams", "what goes or comes there by a plain command has another group lose a message, or get one that nobody scheduled")
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
