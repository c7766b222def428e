package conformance

import (
	"crypto/sha1" // the digest by which servers name scripts
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/duestream/duestream/lua"
)

// workerTold records the entries that a reply gives to a worker, and the entries that it has lost.
func (w *watcher) workerTold(s *sent) {
	if s.reply.isError() {
		return
	}
	switch s.name() {
	case "XREADGROUP":
		list := s.reply.list
		if s.reply.kind != '%' { // RESP2: a list of pairs
			list = nil
			for _, pair := range s.reply.list {
				list = append(list, pair.list...)
			}
		}
		for i := 0; i+1 < len(list); i += 2 {
			w.gives(s, list[i].text, list[i+1], true)
		}
	case "XPENDING":
		w.holdsStill(s)
	case "XRANGE", "XREVRANGE":
		if kind, _ := w.kindOf(append(s.args, "")[1]); kind == "stream" {
			w.gives(s, s.args[1], s.reply, false)
		}
	case "XCLAIM":
		w.loses(s, s.args[1], s.args[5:], s.reply.strings())
	case "XGROUP":
		if s.is("XGROUP DELCONSUMER") && s.reply.number() > 0 {
			w.brokeBy(s, "keeps-consumers", fmt.Sprintf("it held %d pending entries, which nobody gets again", s.reply.number()))
		}
	case "FCALL", "EVALSHA", "EVAL":
		if name, keys, args := scriptOf(s); name == "extend" && len(keys) > 0 && len(args) > 2 &&
			len(s.reply.list) == (len(args)-2)/2 {
			entries := every(2, args[2:])
			extended := slices.DeleteFunc(slices.Clone(entries), func(entry string) bool {
				return s.reply.list[slices.Index(entries, entry)].text != "1"
			})
			w.loses(s, keys[0], entries, extended)
		}
	}
}

// holdsStill records the entries that XPENDING lists for the worker's consumer: the reply that gave them may be lost.
func (w *watcher) holdsStill(s *sent) {
	for _, row := range s.reply.list {
		if len(row.list) == 4 && row.list[1].text == w.work.consumer[s.program] && len(s.args) > 2 &&
			s.args[2] == w.work.group[s.program] {
			w.entry(s, s.args[1], row.list[0].text).consumer = row.list[1].text
		}
	}
}

// entry returns the record of an entry of a program's group, and creates it if needed.
func (w *watcher) entry(s *sent, stream, id string) *given {
	key := [3]string{w.work.group[s.program], stream, id}
	g := w.work.given[key]
	if g == nil {
		g = &given{
			group: key[0], stream: stream, entry: id, fields: map[string]string{},
			reads: map[string]int{}, begun: map[string][]begun{}, acked: map[string]time.Time{},
		}
		w.work.given[key] = g
		w.work.order = append(w.work.order, g)
	}
	return g
}

// gives records entries that a reply shows to a program. A read gives them to its consumer.
func (w *watcher) gives(s *sent, stream string, entries value, read bool) {
	group, consumer := w.work.group[s.program], w.work.consumer[s.program]
	for _, e := range entries.list {
		if len(e.list) != 2 || e.list[1].null {
			continue // deleted since
		}
		key := [3]string{group, stream, e.list[0].text}
		g := w.work.given[key]
		if g == nil && !read || g != nil && g.consumer != consumer && !read {
			continue
		}
		g = w.entry(s, stream, e.list[0].text)
		names := e.list[1].strings()
		for i := 0; i+1 < len(names); i += 2 {
			g.fields[names[i]] = names[i+1]
		}
		g.consumer = consumer
		g.reads[s.program]++
	}
}

// loses records the entries that a reply says the program no longer holds.
func (w *watcher) loses(s *sent, stream string, entries, kept []string) {
	for _, entry := range entries {
		if g := w.work.given[[3]string{w.work.group[s.program], stream, entry}]; g != nil && !slices.Contains(kept, entry) {
			g.lost = true
		}
	}
}

// calls checks the call of a script or function.
func (w *watcher) calls(s *sent) {
	name, keys, args := scriptOf(s)
	if name == "" {
		w.work.unknown[s.program] = true
		return
	}
	each := map[string]struct{ skip, step int }{"ack": {1, 2}, "retry": {3, 6}, "dead_letter": {1, 3}, "release": {1, 2}}
	if of, leaves := each[name]; leaves && len(keys) > 0 && len(args) > of.skip {
		w.leaves(s, keys[0], args[0], every(of.step, args[of.skip:]), name == "ack")
	}
}

// every returns each n-th item of a list, beginning with the first.
func every(n int, list []string) (some []string) {
	for i := 0; i < len(list); i += n {
		some = append(some, list[i])
	}
	return some
}

// scriptOf returns the name, keys and arguments of a call of a script or function of the protocol. The name is "" for
// any other script.
func scriptOf(s *sent) (name string, keys, args []string) {
	if len(s.args) < 3 {
		return "", nil, nil
	}
	switch s.name() {
	case "FCALL":
		if name, _ = strings.CutPrefix(s.args[1], "duestream_"); name == s.args[1] {
			name = ""
		}
	case "EVALSHA":
		name = scripts()[strings.ToLower(s.args[1])]
	case "EVAL":
		name = scripts()[digest(s.args[1])]
	}
	n, err := strconv.Atoi(s.args[2])
	if err != nil || n < 0 || 3+n > len(s.args) {
		return name, nil, nil
	}
	return name, s.args[3 : 3+n], withoutActor(s.args[3:3+n], s.args[3+n:])
}

// withoutActor returns the arguments of a call without the name of its caller. That is the last argument, if the last
// key is a history.
func withoutActor(keys, args []string) []string {
	if len(keys) > 0 && len(args) > 0 && strings.HasSuffix(keys[len(keys)-1], ":history") {
		return args[:len(args)-1]
	}
	return args
}

func digest(source string) string {
	sum := sha1.Sum([]byte(source))
	return hex.EncodeToString(sum[:])
}

// scripts maps digests to the names of the protocol's scripts that clients call.
var scripts = sync.OnceValue(func() map[string]string {
	names := map[string]string{}
	for _, name := range []string{"enqueue", "enqueue_fresh", "cancel", "reschedule", "register", "signal", "redrive", "ack",
		"retry", "extend", "ensure_group", "drop_consumer"} {
		names[digest(lua.Source(name))] = name
	}
	return names
})
