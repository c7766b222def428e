package assemble

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"go/format"
	"slices"
	"strconv"
	"strings"
)

// libraryName is the name of the functions library; with an underscore it begins the name of each function.
const libraryName = "duestream"

// published lists the functions of the library, in their order.
var published = []struct {
	script string       // the name of the function's script in the library
	file   string       // the script's file
	keys   int          // how many keys each call gives; further keys of the header came with later releases
	former []formerCall // the calls of earlier releases
}{
	{script: "schedule", file: "enqueue.lua", keys: 7},
	{script: "cancel", file: "cancel.lua", keys: 4},
	{script: "reschedule", file: "reschedule.lua", keys: 2},
	{script: "cancel_retries", file: "cancel_retries.lua", keys: 3},
	{script: "reschedule_retries", file: "reschedule_retries.lua", keys: 2},
	{script: "expire", file: "expire.lua", keys: 3},
	{script: "register", file: "register.lua", keys: 1},
	{script: "ack", file: "ack.lua", keys: 1},
	{script: "retry", file: "retry.lua", keys: 6},
	{script: "dead_letter", file: "functions/dead_letter.lua", keys: 6},
	{script: "release", file: "functions/release.lua", keys: 6},
	{script: "extend", file: "extend.lua", keys: 2},
	{script: "save_progress", file: "save_progress.lua", keys: 2},
	// In an earlier release, a letter could not be redriven for another group.
	{script: "redrive", file: "redrive.lua", keys: 6, former: []formerCall{{
		keys: []string{"dead", "due", "payload", "meta", "wake"},
		each: []string{"letter", "when", "edited", "payload", "fields"},
	}}},
}

// refusedWhenFull is the only function that a full server refuses, as a whole.
const refusedWhenFull = "schedule"

// formerCall is the shape of a call that an earlier release documented: the library accepts it for ever.
type formerCall struct{ keys, each []string }

// Function is one function of the library. Its fields are those of the type in package lua.
type Function struct {
	Name, Does        string
	Keys, More, Later []string
	Args, Each        []string
	Returns           string
	AllowOOM          bool
	File              string // below lua
	script            string
	former            []formerCall
}

// Functions returns the functions of the library, without the one that returns its version.
func (s *Sources) Functions() ([]Function, error) {
	var functions []Function
	for _, p := range published {
		file := s.files[p.file]
		if file == nil {
			return nil, fmt.Errorf("there is no lua/%s", p.file)
		}
		h := file.header
		keysToHistory := slices.Index(h.Keys, "history") + 1 // the number of keys up to the history
		if keysToHistory == 0 {
			keysToHistory = len(h.Keys)
		}
		if p.keys > keysToHistory {
			return nil, fmt.Errorf("lua/%s has %d keys up to the history, fewer than %d", p.file, keysToHistory, p.keys)
		}
		f := Function{
			Name: libraryName + "_" + p.script, Does: h.Purpose,
			Keys: h.Keys[:p.keys], More: h.Keys[p.keys:keysToHistory], Later: h.Keys[keysToHistory:],
			Args: h.Args, Each: h.Each, Returns: h.Returns, AllowOOM: p.script != refusedWhenFull,
			File: p.file, script: p.script, former: p.former,
		}
		// The first release with a history took only the keys policy and history after Keys. It has a call of its own
		// if More has further keys today.
		var firstMore []string
		for _, key := range f.More {
			if key == "policy" || key == "history" {
				firstMore = append(firstMore, key)
			}
		}
		if len(firstMore) > 0 && len(firstMore) < len(f.More) {
			f.former = append(slices.Clone(f.former), formerCall{slices.Concat(f.Keys, firstMore), f.Each})
		}
		functions = append(functions, f)
	}
	return functions, nil
}

// Texts in the library that package lua replaces when it returns the library.
const (
	releasePlace = "{{release}}"
	levelPlace   = "{{level}}"
)

// FunctionsLibrary returns the library for FUNCTION LOAD: the files of lib that its scripts use, each once and with its
// comments, then each script as a function. It contains releasePlace and levelPlace for the release and the protocol
// level.
func (s *Sources) FunctionsLibrary() (string, error) {
	body, err := s.functionsBody()
	if err != nil {
		return "", err
	}
	hash := sourceHash(body)
	return "#!lua name=" + libraryName + "\n" +
		"-- duestream's scripts as functions, for clients in any language: " +
		"see docs/reference/protocol.md, section 17.\n" +
		"-- Generated: load a newer one instead of changing it. " +
		"Release " + releasePlace + ", source " + hash + ".\n\n" +
		body +
		"redis.register_function{function_name = '" + libraryName + "_version', " +
		"flags = {'no-writes', 'allow-stale'},\n" +
		"callback = function()\n" +
		"  return {'protocol', '1', 'release', '" + releasePlace + "', 'source', '" + hash + "', " +
		"'level', '" + levelPlace + "'}\n" +
		"end}\n", nil
}

// sourceHash identifies the code of a library. Libraries with the same hash differ at most in comments.
func sourceHash(body string) string {
	sum := sha1.Sum([]byte(withoutComments(body)))
	return hex.EncodeToString(sum[:])[:12]
}

func (s *Sources) functionsBody() (string, error) {
	functions, err := s.Functions()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, lib := range s.functionLibs(functions) {
		b.WriteString(s.files[libPath(lib)].text + "\n")
	}
	b.WriteString(s.files[publishFile].text + "\n")
	for _, f := range functions {
		script, err := s.guarded(s.files[f.File], func(text string) string { return text })
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "scripts.%s = function(KEYS, ARGV)\n%send\n\n", f.script, script)
	}
	for _, f := range functions {
		b.WriteString(f.publish())
	}
	return b.String(), nil
}

// functionLibs returns the files of lib that functions use, in the order in which the scripts name them. So each file
// comes after the files that it needs.
func (s *Sources) functionLibs(functions []Function) (libs []string) {
	for _, f := range functions {
		for _, lib := range s.files[f.File].header.Uses {
			if !slices.Contains(libs, lib) {
				libs = append(libs, lib)
			}
		}
	}
	return libs
}

// publish returns the Lua that publishes the function.
func (f Function) publish() string {
	flags := ""
	if f.AllowOOM {
		flags = "'allow-oom'"
	}
	args := []string{"'" + f.Name + "'", "'" + f.script + "'", "{" + flags + "}"}
	for _, list := range [][]string{f.Keys, f.Args, f.Each, f.More, f.Later} {
		args = append(args, luaList(list))
	}
	var former []string
	for _, call := range f.former {
		former = append(former, "{keys = "+luaList(call.keys), "each = "+luaList(call.each)+"}")
	}
	if len(former) == 0 {
		return folded("publish(", append(args, "{}"), ")")
	}
	former[0] = "{" + former[0]
	return folded("publish(", append(args, former...), "})")
}

func luaList(names []string) string {
	if len(names) == 0 {
		return "{}"
	}
	return "{'" + strings.Join(names, "', '") + "'}"
}

// functionsGo returns the list of functions and the hash of their library as a file of package lua.
func (s *Sources) functionsGo() (string, error) {
	functions, err := s.Functions()
	if err != nil {
		return "", err
	}
	body, err := s.functionsBody()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "// %s\n\npackage lua\n\n", notice(librarySources))
	fmt.Fprintf(&b, "const functionsSource = %q\n\n", sourceHash(body))
	b.WriteString("func functionList() []Function {\n\treturn []Function{\n")
	for _, f := range functions {
		fmt.Fprintf(&b, "{\nName: %q,\nDoes: %s,\n", f.Name, goText(f.Does))
		fmt.Fprintf(&b, "Keys: %s,\nMore: %s,\nLater: %s,\n", goList(f.Keys), goList(f.More), goList(f.Later))
		fmt.Fprintf(&b, "Args: %s,\nEach: %s,\n", goList(f.Args), goList(f.Each))
		fmt.Fprintf(&b, "Returns: %s,\nAllowOOM: %t,\n},\n", goText(f.Returns), f.AllowOOM)
	}
	b.WriteString("}\n}\n")
	text, err := format.Source([]byte(b.String()))
	return string(text), err
}

// goText returns a text as a Go string, broken into lines that are at most columns long in a field of functionList.
func goText(text string) string {
	const most = columns - len(`			Returns:  "" +`) // of the text in one line
	var lines []string
	for len(text) > most {
		end := strings.LastIndexByte(text[:most], ' ') + 1
		if end == 0 {
			break
		}
		lines, text = append(lines, strconv.Quote(text[:end])), text[end:]
	}
	return strings.Join(append(lines, strconv.Quote(text)), " +\n")
}

func goList(names []string) string {
	if len(names) == 0 {
		return "[]string{}"
	}
	return fmt.Sprintf("%#v", names)
}
