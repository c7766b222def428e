package lua

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// FunctionsName is the name of the functions library; with an underscore it begins the name of each function.
const FunctionsName = "duestream"

const versionFunction = FunctionsName + "_version"

// Function is one function of the library, for any client that can FCALL. It takes all of Keys, all of Args, and after
// them any number of Each; its reply is that of its script. With More after Keys, the queue's history records the call,
// if it is kept: then the last argument is the actor. With Later after these, the message also leaves the line of its
// key.
type Function struct {
	Name    string   `json:"name"`
	Does    string   `json:"does"`
	Keys    []string `json:"keys"`
	More    []string `json:"more_keys"`
	Later   []string `json:"later_keys"`
	Args    []string `json:"args"`
	Each    []string `json:"each"` // sent for every item, after Args
	Returns string   `json:"returns"`
	// AllowOOM: a full server runs it. The only one without is schedule, so that a full server refuses it as a whole.
	AllowOOM bool `json:"allow_oom"`

	file   string
	script string       // its name in the library
	former []formerCall // shapes of calls that earlier releases documented
}

// formerCall is the shape of a call that an earlier release documented: the library accepts it for ever.
type formerCall struct{ keys, each []string }

// formerRedrive is a call of duestream_redrive before letters could go to another group.
var formerRedrive = formerCall{
	keys: []string{"dead", "due", "payload", "meta", "wake"},
	each: []string{"letter", "when", "edited", "payload", "fields"},
}

// formerCalls returns the former shapes of a call. At first, only policy and history followed the keys of the table.
func (f Function) formerCalls() (calls []formerCall) {
	if f.Name == FunctionsName+"_redrive" {
		calls = append(calls, formerRedrive)
	}
	first := slices.DeleteFunc(slices.Clone(f.More), func(key string) bool { return key != "policy" && key != "history" })
	if len(first) > 0 && len(first) < len(f.More) {
		calls = append(calls, formerCall{slices.Concat(f.Keys, first), f.Each})
	}
	return calls
}

// Functions returns the functions of the library, without the one that tells its version.
func Functions() []Function {
	letters, releases := *retryScript, *retryScript // with the keys of the script that does their work
	letters.args, letters.each = []string{"group"}, []string{"entry", "id", "error"}
	releases.args, releases.each = []string{"group"}, []string{"entry", "id"}
	made := func(name, file string, s *script) Function {
		f := Function{
			Name: FunctionsName + "_" + name, Keys: append([]string{}, s.keys...), More: []string{}, Later: []string{},
			Args:     append([]string{}, s.args...),
			Each:     append([]string{}, s.each...),
			AllowOOM: s != enqueueScript, file: file, script: name,
		}
		if s.tells() {
			history := slices.Index(f.Keys, "history") + 1
			f.Keys, f.Later = f.Keys[:history], f.Keys[history:]
			n := history - 2
			if at := slices.Index(f.Keys, "turns"); at >= 0 { // of messages with a key
				n = at
			}
			if s == ackScript {
				n = 1
			}
			if s == enqueueScript { // it always needs a policy
				n++
			}
			f.Keys, f.More = f.Keys[:n], f.Keys[n:]
		}
		text := readSource(file)
		f.Does = strings.TrimSpace(purposeLine.FindStringSubmatch(text)[1])
		f.Returns = strings.TrimSpace(returnsLine.FindStringSubmatch(text)[1])
		f.former = f.formerCalls()
		return f
	}
	return []Function{
		made("schedule", "enqueue.lua", enqueueScript),
		made("cancel", "cancel.lua", cancelScript),
		made("reschedule", "reschedule.lua", rescheduleScript),
		made("cancel_retries", "cancel_retries.lua", cancelRetriesScript),
		made("reschedule_retries", "reschedule_retries.lua", rescheduleRetriesScript),
		made("expire", "expire.lua", expireScript),
		made("register", "register.lua", registerScript),
		made("ack", "ack.lua", ackScript),
		made("retry", "retry.lua", retryScript),
		made("dead_letter", "functions/dead_letter.lua", &letters),
		made("release", "functions/release.lua", &releases),
		made("extend", "extend.lua", extendScript),
		made("redrive", "redrive.lua", redriveScript),
	}
}

var (
	purposeLine = regexp.MustCompile(`^-- \w+: (.*)\n`)
	returnsLine = regexp.MustCompile(`(?m)^-- Returns: (.*)$`)
)

// FunctionsLibrary returns the library for FUNCTION LOAD: the files of lib that its scripts use, each once and with its
// comments, then each script as a function. So scripts and functions have one source. release only appears in it.
func FunctionsLibrary(release string) string { return functionsLibrary(release, Level) }

func functionsLibrary(release string, level int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "#!lua name=%s\n", FunctionsName)
	fmt.Fprintf(&b, "-- duestream's scripts as functions, for clients in any language: see docs/reference/protocol.md, section 17. "+
		"Generated: load a newer one instead of\n"+
		"-- changing it. Release %s, source %s.\n\n", cleanRelease(release), FunctionsSource())
	b.WriteString(functionsBody())
	fmt.Fprintf(&b, "redis.register_function{function_name = '%s', flags = {'no-writes', 'allow-stale'}, callback = function()\n"+
		"  return {'protocol', '1', 'release', '%s', 'source', '%s', 'level', '%d'}\nend}\n", versionFunction,
		cleanRelease(release), FunctionsSource(), level)
	return b.String()
}

// FunctionsSource returns a hash of the library's code. Libraries with the same hash differ at most in comments.
func FunctionsSource() string { return sha1Hex(stripComments(functionsBody()))[:12] }

// cleanRelease replaces the characters of a release that could end the Lua string around it.
func cleanRelease(release string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._+-", r) {
			return r
		}
		return '_'
	}, release)
}

func functionsBody() string {
	var b strings.Builder
	functions := Functions()
	for _, lib := range functionLibs(functions) {
		fmt.Fprintf(&b, "%s\n", readSource("lib/"+lib+".lua"))
	}
	fmt.Fprintf(&b, "%s\n", readSource("functions/publish.lua"))
	for _, f := range functions {
		body := whole(f.file, func(text string) string { return text })
		fmt.Fprintf(&b, "scripts.%s = function(KEYS, ARGV)\n%send\n\n", f.script, body)
	}
	for _, f := range functions {
		flags := ""
		if f.AllowOOM {
			flags = "'allow-oom'"
		}
		var former []string
		for _, call := range f.former {
			former = append(former, fmt.Sprintf("{keys = %s, each = %s}", luaList(call.keys), luaList(call.each)))
		}
		fmt.Fprintf(&b, "publish('%s', '%s', {%s}, %s, %s, %s, %s, %s, {%s})\n", f.Name, f.script, flags, luaList(f.Keys),
			luaList(f.Args), luaList(f.Each), luaList(f.More), luaList(f.Later), strings.Join(former, ", "))
	}
	return b.String()
}

// functionLibs returns the files of lib that functions use, each after those it needs: in the order in which the
// scripts name them.
func functionLibs(functions []Function) (libs []string) {
	for _, f := range functions {
		for lib := range strings.FieldsSeq(usesLine.FindStringSubmatch(readSource(f.file))[1]) {
			if !slices.Contains(libs, lib) {
				libs = append(libs, lib)
			}
		}
	}
	return libs
}

func luaList(names []string) string {
	if len(names) == 0 {
		return "{}"
	}
	return "{'" + strings.Join(names, "', '") + "'}"
}
