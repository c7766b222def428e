package lua

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/assemble"
)

// scripts lists every typed call's script.
func scripts() []*script {
	return []*script{
		ackScript, ackResultScript, cancelScript, cancelEntriesScript,
		cancelRetriesScript, claimScript,
		configureScript, deleteEmptyScript, drainScript, dropConsumerScript, dropGroupsScript,
		enqueueScript,
		enqueueFreshScript, enqueueOneScript,
		ensureGroupScript, expireScript, exportScript, extendScript, findEntriesScript,
		findLostScript, findOrphansScript, findUnfinishedScript,
		glanceScript, heartbeatScript, orphansScript, passTurnsScript, planScript, receiveScript, reclaimScript, recurScript,
		redriveScript, registerScript,
		removeRecurrenceScript, rescheduleScript, rescheduleRetriesScript,
		restoreScript, retryScript, runRecurrenceScript, saveProgressScript,
		searchDueScript, searchEntriesScript, setPolicyScript,
		setTargetScript,
		signalScript, surveyScript, takeScript, trimScript,
		versionsScript, withdrawScript,
	}
}

// types is the data model: the type of each key that a header may name.
var types = map[string]string{
	"due": "zset", "payload": "hash", "meta": "hash", "stream": "stream", "dead": "stream", "wake": "stream",
	"policy": "hash",
	"seen":   "zset", "calm": "hash", "recurring": "hash", "planned": "hash", "history": "stream", "rate": "string",
	"turns": "zset", "leases": "zset", "push": "hash", "changes": "stream", "progress": "hash",
	"result": "string",
	"bucket": "string", "once": "string",
	"queues": "hash", "bridges": "zset", "settings": "hash", "fields": "hash",
	"entries": "stream",
}

// The header of each script must agree with its body, with the Go call that loads it, and with the data model.
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

	all := sources(t)
	for _, s := range scripts() {
		t.Run(s.name, func(t *testing.T) {
			h, err := all.Header(s.name)
			if err != nil {
				t.Fatal(err)
			}
			wantList(t, "keys", s.keys, h.Keys...)
			wantList(t, "arguments", s.args, h.Args...)
			wantList(t, "repeated arguments", s.each, h.Each...)
			redistest.Want(t, "everyKey", s.everyKey, h.EveryKey)
			redistest.Want(t, "hasActor", s.hasActor(), h.History)
			for i, key := range h.Keys {
				redistest.Want(t, "type of "+key, h.Types[i], types[key])
			}
			text := readSource(s.name + ".lua")
			checkBody(t, h, text)
		})
	}
}

// checkBody compares the body with its header: how keys and arguments are bound, which types are checked, and which
// keys are used.
func checkBody(t *testing.T, h assemble.Header, text string) {
	for _, forbidden := range []string{"#!", "cmsgpack", "redis.setresp", "loadstring", "redis.replicate_commands",
		"redis.REPL",
		"cjson.null"} {
		if strings.Contains(text, forbidden) {
			t.Errorf("uses %s", forbidden)
		}
	}
	// Named locals: local a, b = KEYS[1], ARGV[1]; or local a, b = unpack(KEYS); or {a = KEYS[1], ...}.
	bound := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^local ([a-z_, ]+) = (.*)$`).FindAllStringSubmatch(text, -1) {
		names, values := strings.Split(m[1], ", "), strings.Split(m[2], ", ")
		for i := 0; i < min(len(names), len(values)) && len(names) == len(values); i++ {
			bound[strings.TrimSuffix(strings.TrimPrefix(values[i], "tonumber("), ")")] = names[i]
		}
	}
	unpacked := regexp.MustCompile(`(?m)^local ([a-z_, ]+) = unpack\((KEYS|ARGV)\)`)
	for _, m := range unpacked.FindAllStringSubmatch(text, -1) {
		for i, name := range strings.Split(m[1], ", ") {
			bound[fmt.Sprintf("%s[%d]", m[2], i+1)] = name
		}
	}
	inTable := regexp.MustCompile(`(\w+) = (?:delay_list\()?((?:KEYS|ARGV)\[\d+\])`)
	for _, m := range inTable.FindAllStringSubmatch(text, -1) {
		if bound[m[2]] == "" {
			bound[m[2]] = m[1]
		}
	}
	for i, name := range h.Keys {
		if !h.EveryKey {
			redistest.Want(t, fmt.Sprintf("local of KEYS[%d]", i+1), bound[fmt.Sprintf("KEYS[%d]", i+1)], name)
		}
	}
	for i, name := range h.Args {
		if got, ok := bound[fmt.Sprintf("ARGV[%d]", i+1)]; ok && got != name {
			t.Errorf("ARGV[%d] is bound to %s, the header says %s", i+1, got, name)
		}
	}
	// The type check comes before the first write and covers every key; or else each written key was read before.
	check := regexp.MustCompile(`wrong_type\(\{([^}]*)\}\)`).FindStringSubmatchIndex(text)
	if strings.Contains(text, "\n-- Everything is known before the first write") {
		return // TestWrongTypesAreRefusedBeforeTheFirstWrite holds it
	}
	if check == nil {
		t.Fatal("neither checks types nor says what it reads before its first write")
	}
	var names, kinds []string
	for i, word := range regexp.MustCompile(`,\s+`).Split(text[check[2]:check[3]], -1) {
		if i%2 == 0 {
			names = append(names, strings.TrimPrefix(word, "k."))
		} else {
			kinds = append(kinds, strings.Trim(word, "'"))
		}
	}
	n := len(h.Keys)
	if h.History { // nothing depends on the contents of the policy, the history, and the keys after them
		n = slices.Index(h.Keys, "history") - 1
	}
	wantList(t, "checked keys", names, h.Keys[:n]...)
	wantList(t, "checked types", kinds, h.Types[:n]...)
	if first := strings.Index(text, "redis."); first >= 0 && first < check[0] {
		t.Errorf("touches Redis before the type check: %.60s", text[first:])
	}
	// Keys are given, never built.
	const subcommand = `(?:, '(?:CREATE|CONSUMERS|GROUPS|DELCONSUMER|DESTROY)')?`
	for _, m := range regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`+subcommand+`, ([^,)]+)`).
		FindAllStringSubmatch(text, -1) {
		key := strings.TrimPrefix(m[2], "k.")
		if !slices.Contains(h.Keys, key) && key != "target" {
			t.Errorf("%s of %s, which is no key of the header", m[1], m[2])
		}
	}
	if m := regexp.MustCompile(`KEYS\[\d\] *\.\.|\.\. *KEYS|['"][^'"]*:\{`).FindString(text); m != "" {
		t.Errorf("builds a key name: %s", m)
	}
}

// A file that two calls load would have two definitions of its arguments; one that none loads would be dead text.
func TestEveryScriptIsLoadedOnce(t *testing.T) {
	counts := map[string]int{}
	files, _ := filepath.Glob("*.go")
	for _, file := range files {
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
// scripts of the conformance kit and of the benchmarks' floors stand for other programs, and those of the migrations
// change the data of other programs.
func TestEveryScriptIsAFile(t *testing.T) {
	others := []string{"../lua", "../internal/assemble", "../integration", "../cmd/duestream/conformance",
		"../cmd/duestream/bench", "../bridge/migrate"}
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

// A file of lib must be used, must not read or build the names of keys, and must set no global.
func TestLibrariesAreUsedAndBuildNoKeys(t *testing.T) {
	files, _ := filepath.Glob("lib/*.lua")
	used := map[string]bool{}
	all := sources(t)
	for _, s := range scripts() {
		h, err := all.Header(s.name)
		if err != nil {
			t.Fatal(err)
		}
		for _, lib := range h.Uses {
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
}
