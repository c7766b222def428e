package assemble

import (
	"fmt"
	"strings"
)

// firstWriteComment begins the comment after which a script writes. A command that is refused before it ends the script
// with nothing done.
const firstWriteComment = "-- Everything is known before the first write"

// Script returns the text of a script as the server gets it.
func (s *Sources) Script(name string) (string, error) {
	file, err := s.script(name)
	if err != nil {
		return "", err
	}
	script, err := s.guarded(file, withoutComments)
	if err != nil {
		return "", err
	}
	library := split(s.library(file))
	return library.rest + library.reachableFrom(script) + script, nil
}

// guarded returns a script with two checks of its user's rights, and with errors that name the key or the command. Its
// first write comes after the first check: a refusal in the middle would leave the work half done. So a script checks
// the types only of keys that it does not read before its first write. keep is applied to each part of the file.
func (s *Sources) guarded(file *source, keep func(text string) string) (string, error) {
	all, err := s.needs(file)
	if err != nil {
		return "", err
	}
	late, err := s.needsAfterFirstWrite(file)
	if err != nil {
		return "", err
	}
	before, after, _ := cutAtFirstWrite(file.text)
	var types []string
	for i, t := range file.header.Types {
		types = append(types, fmt.Sprintf("KEYS[%d], '%s'", i+1, t))
	}
	return "local function main()\n" +
		keep(before) + guard(file, late) + keep(after) +
		"end\n" +
		"local ok, reply = pcall(main)\n" +
		"if ok then return reply end\n" +
		"if is_denied(reply) then " + refusal(file, all) + "end\n" +
		folded("return naming_key(reply, {", types, "})"), nil
}

// cutAtFirstWrite cuts a text at firstWriteComment, which is left out. A text without it is returned as after.
func cutAtFirstWrite(text string) (before, after string, found bool) {
	before, rest, found := strings.Cut(text, "\n"+firstWriteComment)
	if !found {
		return "", text, false
	}
	_, after, _ = strings.Cut(rest, "\n")
	return before + "\n", after, true
}

// guard returns the Lua in front of a script's writes: the refusal of a user who may not run all commands that follow.
// A script that only reads needs none. The check costs a fraction of a command, and the server does not count it as
// one.
func guard(file *source, needs []Need) string {
	for _, n := range needs {
		if n.Writes() {
			return refusal(file, needs)
		}
	}
	return ""
}

// refusal returns the Lua that ends a script if its user may not run all of these commands. The in-process server has
// no users.
func refusal(file *source, needs []Need) string {
	var checks []string
	for _, n := range needs {
		switch {
		case len(n.Keys) == 0:
			checks = append(checks, n.check())
		case n.Command == "TYPE": // of every key, before the first write
			checks = append(checks, n.checkFor(file, n.Keys[0]))
		default:
			for _, key := range n.Keys {
				checks = append(checks, n.checkFor(file, key))
			}
		}
	}
	if len(checks) == 0 {
		return ""
	}
	return "do local may = redis.acl_check_cmd\n" +
		"local lacks = may and (" + strings.Join(checks, "\n  or ") + ")\n" +
		"if lacks then return redis.error_reply('NOPERM this user lacks ' .. lacks[1] .. ' on \"' .. (lacks[2] or '') ..\n" +
		"  '\", which script " + strings.TrimSuffix(file.path, ".lua") + " may need; nothing was changed') end end\n"
}

// check returns the Lua expression that is false if the user may run a command without keys, else a list: the command
// and the key.
func (n Need) check() string {
	return fmt.Sprintf("not may(%s) and {'%s', ''}", n.luaWords(), n.Command)
}

// checkFor is check for a command on one key.
func (n Need) checkFor(file *source, key int) string {
	name := fmt.Sprintf("KEYS[%d]", key+1)
	words := n.luaWords() + ", " + name + strings.Repeat(", '0'", argumentsAfterKey[n.Command])
	check := fmt.Sprintf("not may(%s) and {'%s', %s}", words, n.Command, name)
	if mayBeAbsent(file, key) {
		return name + " and " + check
	}
	return check
}

// luaWords returns the words of a command before its key, as a list of Lua strings.
func (n Need) luaWords() string {
	words := append(strings.Fields(n.Command), wordsBeforeKey[n.Command]...)
	return "'" + strings.Join(words, "', '") + "'"
}

// mayBeAbsent reports whether some callers of a script leave a key out: one that few queues use, and in a call of a
// function the turns, the history, and all keys after either.
func mayBeAbsent(file *source, key int) bool {
	for i, name := range file.header.Keys[:key+1] {
		if name == "turns" || name == "history" {
			return true
		}
		if i == key && (name == "policy" || name == "rate") {
			return true
		}
		if i == key && file.path == "redrive.lua" && name == "stream" { // a former call of the function does not give it
			return true
		}
	}
	return false
}
