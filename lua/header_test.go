package lua

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// scripts lists every typed call's script.
func scripts() []*script {
	return []*script{
		ackScript, cancelScript, cancelEntriesScript,
		cancelRetriesScript, configureScript, deleteEmptyScript, drainScript, dropConsumerScript, dropGroupsScript, enqueueScript,
		enqueueFreshScript,
		ensureGroupScript, expireScript, exportScript, extendScript, findLostScript, findOrphansScript, findUnfinishedScript,
		heartbeatScript, orphansScript, passTurnsScript, planScript, receiveScript, reclaimScript, recurScript, redriveScript,
		registerScript,
		removeRecurrenceScript, rescheduleScript, rescheduleRetriesScript,
		restoreScript, retryScript, runRecurrenceScript, setTargetScript, signalScript, surveyScript, takeScript, trimScript,
		versionsScript,
	}
}

// types is the data model: the type of each key that a header may name.
var types = map[string]string{
	"due": "zset", "payload": "hash", "meta": "hash", "stream": "stream", "dead": "stream", "wake": "stream", "policy": "hash",
	"seen": "zset", "calm": "hash", "recurring": "hash", "planned": "hash", "history": "stream", "rate": "string",
	"turns": "zset", "leases": "zset", "push": "hash",
	"bucket": "string",
	"queues": "hash", "bridges": "zset", "settings": "hash", "fields": "hash",
}

// header is the parsed comment at the top of a script.
type header struct {
	keys, keyTypes, args, each []string
	everyKey, tells            bool
	uses                       []string
}

var (
	keyLine  = regexp.MustCompile(`^KEYS\[(\d+)(\.\.\.)?\] ([a-z_, ]+) \(([a-z; ]+)\)$`)
	lastLine = regexp.MustCompile(`^ARGV\[#\] actor \(string, who calls; the last one, given with KEYS\[(\d+)\]\)$`)
	argLine  = regexp.MustCompile(`^ARGV\[(\d+)(\.\.\.)?\] ([a-z_, ]+) \((.+)\)$`)
	sections = []string{"", "Uses: ", "KEYS[", "ARGV[", "Returns: ", "Complexity: ", "If a command fails here: ", "Run twice: "}
)

// parseHeader reads a header and refuses one that is not in order.
func parseHeader(name, text string) (header, error) {
	var h header
	at, seen := 0, map[int]bool{}
	for i, line := range strings.Split(text, "\n") {
		line, isComment := strings.CutPrefix(line, "-- ")
		if !isComment {
			break
		}
		if i > 0 && strings.HasPrefix(line, "  ") {
			continue // it continues the line above
		}
		section := 0
		for s := 1; s < len(sections); s++ {
			if strings.HasPrefix(line, sections[s]) {
				section = s
			}
		}
		if section < at || i == 0 && section != 0 || section > 3 && seen[section] || section == 1 && seen[section] {
			return h, fmt.Errorf("line %d is out of order: %s", i+1, line)
		}
		at, seen[section] = section, true
		switch section {
		case 0:
			if i == 0 && !strings.HasPrefix(line, name+": ") {
				return h, fmt.Errorf("the purpose is %q", line)
			}
		case 1:
			h.uses = strings.Fields(strings.TrimPrefix(line, "Uses: "))
		case 2:
			m := keyLine.FindStringSubmatch(line)
			if m == nil || m[1] != fmt.Sprint(len(h.keys)+1) || h.everyKey {
				return h, fmt.Errorf("line %d: %s", i+1, line)
			}
			h.keys = append(h.keys, strings.Split(m[3], ", ")...)
			h.keyTypes = append(h.keyTypes, strings.Split(m[4], "; ")...)
			h.everyKey = m[2] != ""
		case 3:
			if h.tells {
				return h, fmt.Errorf("line %d: who calls is the last argument: %s", i+1, line)
			}
			if last := lastLine.FindStringSubmatch(line); last != nil {
				n := slices.Index(h.keys, "history") + 1
				if n == 0 || last[1] != fmt.Sprint(n) {
					return h, fmt.Errorf("line %d: who calls is for the history: %s", i+1, line)
				}
				h.tells = true
				continue
			}
			m := argLine.FindStringSubmatch(line)
			if m == nil || m[1] != fmt.Sprint(len(h.args)+1) || h.each != nil {
				return h, fmt.Errorf("line %d: %s", i+1, line)
			}
			if m[2] != "" {
				h.each = strings.Split(m[3], ", ")
			} else {
				h.args = append(h.args, m[3])
			}
		}
	}
	for s := range sections {
		if !seen[s] && s != 3 {
			return h, fmt.Errorf("no line %q", sections[s])
		}
	}
	if slices.Contains(h.keys, "history") != h.tells {
		return h, errors.New("a history without who calls, or the other way round")
	}
	if len(h.keys) != len(h.keyTypes) {
		return h, fmt.Errorf("%d keys and %d types", len(h.keys), len(h.keyTypes))
	}
	return h, nil
}

func TestHeaders(t *testing.T) {
	files, err := filepath.Glob("*.lua")
	if err != nil {
		t.Fatal(err)
	}
	var loaded []string
	for _, s := range scripts() {
		loaded = append(loaded, s.name+".lua")
	}
	slices.Sort(loaded)
	wantList(t, "files that a typed call loads", loaded, files...)

	for _, s := range scripts() {
		t.Run(s.name, func(t *testing.T) {
			text := readSource(s.name + ".lua")
			h, err := parseHeader(s.name, text)
			if err != nil {
				t.Fatal(err)
			}
			wantList(t, "keys", s.keys, h.keys...)
			wantList(t, "arguments", s.args, h.args...)
			wantList(t, "repeated arguments", s.each, h.each...)
			redistest.Want(t, "everyKey", s.everyKey, h.everyKey)
			redistest.Want(t, "tells", s.tells(), h.tells)
			for i, key := range h.keys {
				redistest.Want(t, "type of "+key, h.keyTypes[i], types[key])
			}
			if n := strings.Count(text, "\n"); n >= 160 {
				t.Errorf("%d lines, want less than 160", n)
			}
			checkBody(t, h, text)
		})
	}
}

// checkBody compares the body with its header: how keys and arguments are bound, which types are checked, and which
// keys are used.
func checkBody(t *testing.T, h header, text string) {
	for _, forbidden := range []string{"#!", "cmsgpack", "redis.setresp", "loadstring", "redis.replicate_commands", "redis.REPL",
		"cjson.null"} {
		if strings.Contains(text, forbidden) {
			t.Errorf("uses %s", forbidden)
		}
	}
	// Named locals: local a, b = KEYS[1], ARGV[1]; or {a = KEYS[1], ...}.
	bound := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^local ([a-z_, ]+) = (.*)$`).FindAllStringSubmatch(text, -1) {
		names, values := strings.Split(m[1], ", "), strings.Split(m[2], ", ")
		for i := 0; i < min(len(names), len(values)) && len(names) == len(values); i++ {
			bound[strings.TrimSuffix(strings.TrimPrefix(values[i], "tonumber("), ")")] = names[i]
		}
	}
	for _, m := range regexp.MustCompile(`(\w+) = (?:delay_list\()?((?:KEYS|ARGV)\[\d+\])`).FindAllStringSubmatch(text, -1) {
		if bound[m[2]] == "" {
			bound[m[2]] = m[1]
		}
	}
	for i, name := range h.keys {
		if !h.everyKey {
			redistest.Want(t, fmt.Sprintf("local of KEYS[%d]", i+1), bound[fmt.Sprintf("KEYS[%d]", i+1)], name)
		}
	}
	for i, name := range h.args {
		if got, ok := bound[fmt.Sprintf("ARGV[%d]", i+1)]; ok && got != name {
			t.Errorf("ARGV[%d] is bound to %s, the header says %s", i+1, got, name)
		}
	}
	// The type check comes before the first write and covers every key; or else each written key was read before.
	check := regexp.MustCompile(`wrong_type\(\{([^}]*)\}\)`).FindStringSubmatchIndex(text)
	if firstWrite.MatchString(text) {
		return // TestWrongTypesAreRefusedBeforeTheFirstWrite holds it
	}
	if check == nil {
		t.Fatal("neither checks types nor says what it reads before its first write")
	}
	var names, kinds []string
	for i, word := range strings.Split(text[check[2]:check[3]], ", ") {
		if i%2 == 0 {
			names = append(names, strings.TrimPrefix(word, "k."))
		} else {
			kinds = append(kinds, strings.Trim(word, "'"))
		}
	}
	n := len(h.keys)
	if h.tells { // nothing depends on the contents of the policy, the history, and the keys after them
		n = slices.Index(h.keys, "history") - 1
	}
	wantList(t, "checked keys", names, h.keys[:n]...)
	wantList(t, "checked types", kinds, h.keyTypes[:n]...)
	if first := strings.Index(text, "redis."); first >= 0 && first < check[0] {
		t.Errorf("touches Redis before the type check: %.60s", text[first:])
	}
	// Keys are given, never built.
	for _, m := range regexp.MustCompile(`redis\.p?call\('([A-Z]+)'(?:, '(?:CREATE|GROUPS|DELCONSUMER|DESTROY)')?, ([^,)]+)`).
		FindAllStringSubmatch(text, -1) {
		key := strings.TrimPrefix(m[2], "k.")
		if !slices.Contains(h.keys, key) && key != "target" {
			t.Errorf("%s of %s, which is no key of the header", m[1], m[2])
		}
	}
	if m := regexp.MustCompile(`KEYS\[\d\] *\.\.|\.\. *KEYS|['"][^'"]*:\{`).FindString(text); m != "" {
		t.Errorf("builds a key name: %s", m)
	}
}

func TestHeaderParserRefusesDisorder(t *testing.T) {
	good := readSource("ack.lua")
	if _, err := parseHeader("ack", good); err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(good, "\n")
	for i := range 8 {
		without := strings.Join(slices.Delete(slices.Clone(lines), i, i+1), "")
		if h, err := parseHeader("ack", without); err == nil && len(h.args)+len(h.each) == 3 {
			t.Errorf("accepted without line %d: %s", i+1, lines[i])
		}
		if i < 7 {
			swapped := slices.Clone(lines)
			swapped[i], swapped[i+1] = swapped[i+1], swapped[i]
			if _, err := parseHeader("ack", strings.Join(swapped, "")); err == nil {
				t.Errorf("accepted with lines %d and %d swapped", i+1, i+2)
			}
		}
	}
}

// A file that two calls load would have two definitions of its arguments; one that none loads would be dead text.
func TestEveryScriptIsLoadedOnce(t *testing.T) {
	counts := map[string]int{}
	sources, _ := filepath.Glob("*.go")
	for _, file := range sources {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\bload\("(\w+)"`).FindAllStringSubmatch(string(text), -1) {
			counts[m[1]]++
		}
	}
	for _, s := range scripts() {
		redistest.Want(t, "calls that load "+s.name, counts[s.name], 1)
		delete(counts, s.name)
	}
	if len(counts) > 0 {
		t.Errorf("loaded, but not in scripts(): %v", slices.Collect(maps.Keys(counts)))
	}
}

// A script inside Go code has no header, so no test checks its budget, its keys, or the rights of its users. The
// scripts of the conformance kit and of the benchmarks' floors stand for other programs.
func TestEveryScriptIsAFile(t *testing.T) {
	others := []string{"../lua", "../integration", "../cmd/duestream/conformance", "../cmd/duestream/bench"}
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() && slices.Contains(others, path) {
			return cmp.Or(err, filepath.SkipDir)
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "redis.call(") || strings.Contains(string(text), "NewLuaScript") {
			t.Errorf("%s holds a script: it belongs into a file of lua", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestLibrariesAreUsedAndBuildNoKeys(t *testing.T) {
	files, _ := filepath.Glob("lib/*.lua")
	used := map[string]bool{}
	for _, s := range scripts() {
		for lib := range strings.FieldsSeq(usesLine.FindStringSubmatch(readSource(s.name + ".lua"))[1]) {
			used["lib/"+lib+".lua"] = true
		}
	}
	for _, file := range files {
		text := readSource(file)
		if !used[file] {
			t.Errorf("%s is used by no script", file)
		}
		if m := regexp.MustCompile(`KEYS|ARGV|cmsgpack|['"][^'"]*:\{`).FindString(text); m != "" {
			t.Errorf("%s holds %q", file, m)
		}
		// A global would be an error on the first call only.
		for _, m := range regexp.MustCompile(`(?m)^(?:function (\w+)|(\w+) = )`).FindAllStringSubmatch(text, -1) {
			t.Errorf("%s sets the global %s%s", file, m[1], m[2])
		}
	}
	for _, s := range scripts() {
		if strings.Contains(Source(s.name), "\n--") {
			t.Errorf("%s is sent with its comments", s.name)
		}
	}
}
