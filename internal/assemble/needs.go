package assemble

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Need is a command that a script may call.
type Need struct {
	Command string // with its subcommand: "XADD", "XGROUP DELCONSUMER"
	Keys    []int  // the keys for which the script calls it, as indexes of KEYS from 0; empty = a command without keys
}

// Needs returns the commands that a script may call, read from its file and from the library functions that it can
// reach, in the order of the texts. The server checks each command of a script as if the user called it. So a user who
// runs the script needs the right to all of them. Needs leaves out the dispensable commands.
func (s *Sources) Needs(script string) ([]Need, error) {
	file, err := s.script(script)
	if err != nil {
		return nil, err
	}
	return s.needs(file)
}

// NeedsAfterFirstWrite returns the commands that a script may call after its first write, without commands on whose
// effect nothing depends. The script checks before its first write that its user may run these commands. A script that
// takes back its writes needs no check, and has none of these.
func (s *Sources) NeedsAfterFirstWrite(script string) ([]Need, error) {
	file, err := s.script(script)
	if err != nil {
		return nil, err
	}
	return s.needsAfterFirstWrite(file)
}

func (s *Sources) needs(file *source) ([]Need, error) {
	return needsOf(file, s.library(file)+withoutComments(file.text))
}

// optionalLine matches a line on whose effect nothing depends.
var optionalLine = regexp.MustCompile(`(?m)^ *(if [\w.]+ then )?pcall\(\w+(, [\w.]+)?\)( end)?\n`)

func (s *Sources) needsAfterFirstWrite(file *source) ([]Need, error) {
	before, writes, found := cutAtFirstWrite(file.text)
	before, writes = withoutComments(before), optionalLine.ReplaceAllString(withoutComments(writes), "")
	if strings.Contains(file.text, "\n"+takesBackComment) {
		return nil, nil
	}
	if !found {
		return needsOf(file, s.library(file)+writes)
	}
	above := split(s.library(file) + before)
	for _, f := range above.functions { // a function that is returned above the comment may be called below it
		if strings.Contains(f.text, "return function") && hasWord(before, f.name) {
			writes += f.name + "\n"
		}
	}
	all, err := needsOf(file, above.reachableFrom(writes)+writes)
	return withoutCertain(file, before, withoutOptionalKeys(file, all)), err
}

// certainCommand matches a line outside of functions and conditions that sends a command. Each run that comes to the
// next line has sent this command, and the server has not refused it: a refusal would have ended the script.
var certainCommand = regexp.MustCompile(
	`(?m)^(?:local [\w, ]+ = (?:\w+, )*)?redis\.call\('([A-Z]+)'(?:, '([A-Z]+)')?, (?:\w+\.)?(\w+)`)

// withoutCertain removes from the needs each key to which before, the text above the first write, certainly sends the
// same command. When a run comes to its first write, the server has already accepted this command from its user.
func withoutCertain(file *source, before string, needs []Need) (rest []Need) {
	for _, n := range needs {
		keys := slices.Clone(n.Keys)
		for _, m := range certainCommand.FindAllStringSubmatch(before, -1) {
			if m[1] == n.Command || m[1]+" "+m[2] == n.Command {
				keys = slices.DeleteFunc(keys, func(key int) bool { return file.header.Keys[key] == m[3] })
			}
		}
		if len(keys) > 0 || len(n.Keys) == 0 {
			rest = append(rest, Need{Command: n.Command, Keys: keys})
		}
	}
	return rest
}

// optionalKeys are keys that few queues use. The rights to them are not checked, because a check in each call would
// cost every queue. Instead, a script tries its write to such a key before it changes anything else.
var optionalKeys = []string{"turns", "rate"}

func withoutOptionalKeys(file *source, needs []Need) (rest []Need) {
	for _, n := range needs {
		required := n
		required.Keys = slices.DeleteFunc(slices.Clone(n.Keys), func(key int) bool {
			return slices.Contains(optionalKeys, file.header.Keys[key])
		})
		if len(required.Keys) > 0 || len(n.Keys) == 0 {
			rest = append(rest, required)
		}
	}
	return rest
}

// dispensable are commands that a script calls only if the server has them and the user has the right. Otherwise the
// script uses other commands. Users must work without this right, because servers without the command refuse a rule
// that names it.
var dispensable = []string{"XDELEX"}

// chunkFunction is the only function that gets a command as an argument. So its calls are read like calls of
// redis.call.
const chunkFunction = "in_chunks"

var sentCommand = regexp.MustCompile(
	`(?:redis\.p?call|` + chunkFunction + `)\('([A-Z]+)'(?:, '([A-Z]+)')?(?:, (?:\w+\.)?(\w+))?`)

var subcommands = map[string]bool{"XGROUP": true, "XINFO": true, "MEMORY": true}

// needsOf returns the commands of a text that its lines outside of functions can reach.
func needsOf(file *source, text string) ([]Need, error) {
	var needs []Need
	add := func(command string, keys ...int) {
		if slices.Contains(dispensable, command) {
			return
		}
		i := slices.IndexFunc(needs, func(n Need) bool { return n.Command == command })
		if i < 0 {
			needs, i = append(needs, Need{Command: command}), len(needs)
		}
		for _, key := range keys {
			if !slices.Contains(needs[i].Keys, key) {
				needs[i].Keys = append(needs[i].Keys, key)
			}
		}
	}
	script := split(text).without(chunkFunction)
	for line := range strings.Lines(script.rest + script.reachableFrom(script.rest)) {
		calls := strings.Count(line, "redis.call(") + strings.Count(line, "redis.pcall(")
		if calls == 0 && !strings.Contains(line, chunkFunction+"(") {
			continue
		}
		sent := sentCommand.FindAllStringSubmatch(line, -1)
		if len(sent) < max(1, calls) {
			return nil, fmt.Errorf("lua/%s: a command is not written as redis.call('COMMAND', key, ...), so nobody knows what "+
				"its user needs: %s", file.path, strings.TrimSpace(line))
		}
		for _, m := range sent {
			command, key := m[1], m[3]
			if subcommands[command] {
				command += " " + m[2]
			}
			at := slices.Index(file.header.Keys, key)
			switch {
			case key == "":
				add(command)
			case at >= 0:
				add(command, at)
			default: // the key is a parameter of a library function, so it may be any key of the command's type
				add(command, keysFor(command, file.header.Types)...)
			}
		}
	}
	return needs, nil
}

// keysFor returns the keys of the type on which a command works.
func keysFor(command string, types []string) (keys []int) {
	commandType, known := map[byte]string{'X': "stream", 'Z': "zset", 'H': "hash"}[command[0]]
	for i, t := range types {
		if !known || t == commandType {
			keys = append(keys, i)
		}
	}
	return keys
}

// readOnly are the commands that write nothing. A command that is missing here only makes the guard longer.
var readOnly = map[string]bool{
	"TYPE": true, "TIME": true, "EXISTS": true, "ZRANGE": true, "ZRANGEBYSCORE": true, "ZSCORE": true, "ZMSCORE": true,
	"ZCARD": true, "ZCOUNT": true, "ZRANK": true, "ZRANGEBYLEX": true, "ZSCAN": true,
	"HGET": true, "HGETALL": true, "HMGET": true, "HLEN": true, "HSCAN": true, "HSTRLEN": true, "HEXISTS": true,
	"XRANGE": true, "XREVRANGE": true, "XLEN": true, "XPENDING": true, "XINFO GROUPS": true, "XINFO CONSUMERS": true,
	"MEMORY USAGE": true, "GET": true, "GETRANGE": true,
}

// Writes reports whether the command may write.
func (n Need) Writes() bool { return !readOnly[n.Command] }

// argumentsAfterKey is the least number of arguments that a command takes after its key. Newer servers check the rights
// only of a command with enough arguments.
var argumentsAfterKey = map[string]int{
	"XADD": 3, "XDEL": 1, "XTRIM": 2, "XACK": 2, "XCLAIM": 4, "XAUTOCLAIM": 4,
	"XGROUP CREATE": 2, "XGROUP DELCONSUMER": 2, "XGROUP DESTROY": 1,
	"XINFO CONSUMERS": 1, "XPENDING": 1, "XRANGE": 2, "XREVRANGE": 2, "XREADGROUP": 1,
	"ZADD": 2, "ZREM": 1, "ZREMRANGEBYSCORE": 2, "ZREMRANGEBYRANK": 2, "ZRANGE": 2, "ZRANGEBYSCORE": 2,
	"ZSCORE": 1, "ZMSCORE": 1, "ZRANK": 1, "ZRANGEBYLEX": 2, "ZCOUNT": 2, "ZSCAN": 1,
	"HSET": 2, "HSETNX": 2, "HDEL": 1, "HGET": 1, "HMGET": 1, "HSTRLEN": 1, "HSCAN": 1, "HEXISTS": 1,
	"PEXPIRE": 1, "GETRANGE": 2, "SET": 1,
}

// wordsBeforeKey are the words between a command and its key.
var wordsBeforeKey = map[string][]string{"XREADGROUP": {"GROUP", "0", "0", "STREAMS"}}

// Words returns the shortest possible command with this need for a key of that name, as ACL DRYRUN takes it.
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
