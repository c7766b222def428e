package lua

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Need is a command that a script may call.
type Need struct {
	Command string // with its subcommand: "XADD", "XGROUP DELCONSUMER"
	Keys    []int  // for which of KEYS, from 0; empty = a command without keys
}

// KeyNames returns the names of a script's keys from its header, in order.
func KeyNames(name string) []string { return keyNames(name + ".lua") }

// Needs returns the commands that a script may call, read from its text and from the library functions that it can
// reach, in the order of the texts. The server checks each command of a script as if the user called it. So a user who
// runs the script needs the right to all of them.
func Needs(name string) []Need {
	return needs(name+".lua", textOf(name+".lua"))
}

var (
	sentCommand = regexp.MustCompile(`(?:redis\.p?call|in_chunks)\('([A-Z]+)'(?:, '([A-Z]+)')?(?:, (?:\w+\.)?(\w+))?`)
	headerKey   = regexp.MustCompile(`(?m)^-- KEYS\[\d+(?:\.\.\.)?\] (.+) \((.+)\)$`)
	subcommands = map[string]bool{"XGROUP": true, "XINFO": true, "MEMORY": true}
)

// chunked is the one function that gets a command as an argument; its callers are looked at instead.
const chunked = "in_chunks"

// firstWrite is the comment after which a script writes. A command that is refused before it ends the script, with
// nothing done.
var firstWrite = regexp.MustCompile(`(?m)^-- Everything is known before the first write.*\n`)

// mayFail matches a line on whose effect nothing depends.
var mayFail = regexp.MustCompile(`(?m)^ *(if [\w.]+ then )?pcall\(\w+(, [\w.]+)?\)( end)?\n`)

// guarded returns the commands that a script may call after firstWrite, or all if it has no such comment, except in
// lines that mayFail matches.
func guarded(file string) []Need {
	parts := firstWrite.Split(readSource(file), 2)
	if len(parts) == 1 {
		return needs(file, libText(file)+mayFail.ReplaceAllString(stripComments(parts[0]), ""))
	}
	before, writes := stripComments(parts[0]), mayFail.ReplaceAllString(stripComments(parts[1]), "")
	library := libText(file) + before
	functions, _ := splitFunctions(library)
	for _, f := range functions { // a function made above the line may be called below it
		if strings.Contains(f.text, "return function") && hasWord(before, f.name) {
			writes += f.name + "\n"
		}
	}
	return withoutOptional(file, needs(file, functionsOf(library, writes)+writes))
}

// optionalKeys are keys that few queues use. A script tries its write to one before it changes anything else, because
// checking the rights to them each time would cost every queue.
var optionalKeys = []string{"turns", "rate"}

func withoutOptional(file string, all []Need) (rest []Need) {
	names := keyNames(file)
	for _, n := range all {
		asked := n
		asked.Keys = slices.DeleteFunc(slices.Clone(n.Keys), func(key int) bool {
			return slices.Contains(optionalKeys, names[key])
		})
		if len(asked.Keys) > 0 || len(n.Keys) == 0 {
			rest = append(rest, asked)
		}
	}
	return rest
}

// keyNames and keyTypes return the names and the types of a script's keys from its header, in order.
func keyNames(file string) []string { return headerKeys(file, 1, ", ") }
func keyTypes(file string) []string { return headerKeys(file, 2, "; ") }

func headerKeys(file string, part int, separator string) (list []string) {
	for _, m := range headerKey.FindAllStringSubmatch(readSource(file), -1) {
		list = append(list, strings.Split(m[part], separator)...)
	}
	return list
}

func needs(file, source string) []Need {
	names, types := keyNames(file), keyTypes(file)
	var found []Need
	add := func(command string, keys ...int) {
		i := slices.IndexFunc(found, func(n Need) bool { return n.Command == command })
		if i < 0 {
			found, i = append(found, Need{Command: command}), len(found)
		}
		for _, key := range keys {
			if !slices.Contains(found[i].Keys, key) {
				found[i].Keys = append(found[i].Keys, key)
			}
		}
	}
	for _, line := range reachable(source) {
		calls := strings.Count(line, "redis.call(") + strings.Count(line, "redis.pcall(")
		if calls == 0 && !strings.Contains(line, chunked+"(") {
			continue
		}
		sent := sentCommand.FindAllStringSubmatch(line, -1)
		if len(sent) < max(1, calls) {
			panic(fmt.Sprintf("lua: %s: a command is not written as redis.call('COMMAND', key, ...), so nobody knows what its "+
				"user needs: %s", file, line))
		}
		for _, m := range sent {
			command, key := m[1], m[3]
			if subcommands[command] {
				command += " " + m[2]
			}
			switch at := slices.Index(names, key); {
			case key == "":
				add(command)
			case at >= 0:
				add(command, at)
			default: // a parameter of a library function: any key that the command is for
				add(command, keysFor(command, types)...)
			}
		}
	}
	return found
}

// reachable returns the lines of a script outside its functions, and the lines of the functions that can be called from
// there.
func reachable(source string) []string {
	functions, rest := splitFunctions(source)
	for _, f := range functions {
		if f.name == chunked {
			source = strings.Replace(source, f.text, "", 1)
		}
	}
	return strings.Split(rest+functionsOf(source, rest), "\n")
}

// function is one function of a script.
type function struct{ name, text string }

// splitFunctions returns the functions of a script, and the lines outside of them.
func splitFunctions(source string) (functions []function, rest string) {
	inside := false
	for line := range strings.Lines(source) {
		if name, ok := strings.CutPrefix(line, "local function "); ok {
			name, _, _ = strings.Cut(name, "(")
			functions, inside = append(functions, function{name: name}), true
		}
		if !inside {
			rest += line
			continue
		}
		functions[len(functions)-1].text += line
		inside = line != "end\n"
	}
	return functions, rest
}

// functionsOf returns the functions of a source that can be called from a text, in their order.
func functionsOf(source, text string) string {
	functions, _ := splitFunctions(source)
	called := map[string]bool{}
	for more := true; more; {
		more = false
		for _, f := range functions {
			if !called[f.name] && hasWord(text, f.name) {
				called[f.name], more = true, true
				text += f.text
			}
		}
	}
	var b strings.Builder
	for _, f := range functions {
		if called[f.name] {
			b.WriteString(f.text)
		}
	}
	return b.String()
}

// hasWord reports whether a Lua name stands in a text as a whole word.
func hasWord(text, name string) bool {
	inName := func(at int) bool {
		return at >= 0 && at < len(text) && (text[at] == '_' || unicode.IsLetter(rune(text[at])) ||
			unicode.IsDigit(rune(text[at])))
	}
	for at := 0; ; at++ {
		next := strings.Index(text[at:], name)
		if next < 0 {
			return false
		}
		if at += next; !inName(at-1) && !inName(at+len(name)) {
			return true
		}
	}
}

// keysFor returns the keys of the type on which a command works.
func keysFor(command string, types []string) (keys []int) {
	of, ok := map[byte]string{'X': "stream", 'Z': "zset", 'H': "hash"}[command[0]]
	for i, t := range types {
		if !ok || t == of {
			keys = append(keys, i)
		}
	}
	return keys
}

// readOnly are the commands that write nothing. A command that is missing here only makes the guard longer.
var readOnly = map[string]bool{
	"TYPE": true, "TIME": true, "EXISTS": true, "ZRANGE": true, "ZRANGEBYSCORE": true, "ZSCORE": true, "ZMSCORE": true,
	"ZCARD": true, "ZCOUNT": true,
	"ZRANK": true, "ZRANGEBYLEX": true, "ZSCAN": true,
	"HGET": true, "HMGET": true, "HLEN": true, "HSCAN": true, "HSTRLEN": true, "HEXISTS": true,
	"XRANGE": true, "XREVRANGE": true, "XLEN": true,
	"XPENDING": true, "XINFO GROUPS": true, "MEMORY USAGE": true, "GET": true, "GETRANGE": true,
}

// argumentsAfterKey is the least number of arguments after a command's key: newer servers check no rights for fewer.
var argumentsAfterKey = map[string]int{
	"XADD": 3, "XDEL": 1, "XTRIM": 2, "XACK": 2, "XCLAIM": 4, "XAUTOCLAIM": 4, "XGROUP CREATE": 2, "XGROUP DELCONSUMER": 2,
	"XGROUP DESTROY": 1,
	"XPENDING":       1, "XRANGE": 2,
	"XREVRANGE": 2, "ZADD": 2, "ZREM": 1, "ZREMRANGEBYSCORE": 2, "ZREMRANGEBYRANK": 2, "ZRANGE": 2, "ZRANGEBYSCORE": 2,
	"ZSCORE": 1, "ZMSCORE": 1, "ZRANK": 1, "ZRANGEBYLEX": 2,
	"ZCOUNT": 2, "ZSCAN": 1, "HSET": 2, "HSETNX": 2, "HDEL": 1, "HGET": 1, "HMGET": 1, "HSTRLEN": 1, "HSCAN": 1, "HEXISTS": 1,
	"PEXPIRE": 1, "GETRANGE": 2, "SET": 1, "XREADGROUP": 1,
}

// wordsBeforeKey are the words between a command and its key.
var wordsBeforeKey = map[string][]string{"XREADGROUP": {"GROUP", "0", "0", "STREAMS"}}

// Words returns the need as the shortest possible command for a key of that name; for ACL DRYRUN.
func (n Need) Words(key string) []string {
	words := strings.Fields(n.Command)
	if len(n.Keys) == 0 {
		return words
	}
	words = append(append(words, wordsBeforeKey[n.Command]...), key)
	for range argumentsAfterKey[n.Command] {
		words = append(words, "0")
	}
	return words
}

// guard returns the Lua in front of a script's writes. It refuses a user who lacks a command that may be called there,
// because a refusal in the middle would leave the work half done. A script that only reads needs no guard. The check
// costs a fraction of a command, and the server does not count it as one. The in-process server has no users.
func guard(file string, all []Need) string {
	if !slices.ContainsFunc(all, func(n Need) bool { return !readOnly[n.Command] }) {
		return ""
	}
	return refuseWhoLacks(file, all)
}

// refuseWhoLacks returns the Lua that refuses a user who may not call all of these commands.
func refuseWhoLacks(file string, all []Need) string {
	var checks []string
	names := keyNames(file)
	// Some callers omit these keys: those that few queues use; and, in a function call, turns, the history and all keys
	// after either.
	turns, history := slices.Index(names, "turns"), slices.Index(names, "history")
	optional := func(key int) bool {
		if key < 0 {
			return false
		}
		if file == "redrive.lua" && names[key] == "stream" { // a former call of the function does not give it
			return true
		}
		return turns >= 0 && key >= turns || history >= 0 && key >= history ||
			slices.Contains([]string{"policy", "rate", "history"}, names[key])
	}
	check := func(command string, key int) {
		what, where := "'"+strings.Join(append(strings.Fields(command), wordsBeforeKey[command]...), "', '")+"'", "''"
		if key >= 0 {
			where = fmt.Sprintf("KEYS[%d]", key+1)
			what += ", " + where + strings.Repeat(", '0'", argumentsAfterKey[command])
		}
		given := ""
		if optional(key) {
			given = where + " and "
		}
		checks = append(checks, fmt.Sprintf("%snot may(%s) and {'%s', %s}", given, what, command, where))
	}
	for _, n := range all {
		keys := n.Keys
		switch {
		case len(keys) == 0:
			check(n.Command, -1)
			continue
		case n.Command == "TYPE": // of every key, before the first write
			keys = keys[:1]
		}
		for _, key := range keys {
			check(n.Command, key)
		}
	}
	if len(checks) == 0 {
		return ""
	}
	return "do local may = redis.acl_check_cmd\n" +
		"local lacks = may and (" + strings.Join(checks, "\n  or ") + ")\n" +
		"if lacks then return redis.error_reply('NOPERM this user lacks ' .. lacks[1] .. ' on \"' .. (lacks[2] or '') .. '\", " +
		"which script " + strings.TrimSuffix(file, ".lua") + " may need; nothing was changed') end end\n"
}
