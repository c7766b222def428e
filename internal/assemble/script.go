package assemble

import (
	"fmt"
	"strings"
)

// firstWriteComment is the beginning of the comment after which a script writes. A command that is refused before this
// comment ends the script, and nothing was changed.
const firstWriteComment = "-- Everything is known before the first write"

// takesBackComment is the comment of a script that takes back its writes when a later one is refused. Such a script
// gets no generated check of its user's rights before its first write.
const takesBackComment = firstWriteComment + ", and is taken back if a later one is refused."

// restComment stands in a script whose most frequent calls return above this comment. The functions and constants that
// only the lines below the comment need are declared in its place.
const restComment = "-- Declared here: what only the lines below need."

// restPlace takes the place of restComment, because comments are removed. The declarations then replace restPlace.
const restPlace = "rest()"

// Script returns the text of a script as the server gets it.
func (s *Sources) Script(name string) (string, error) {
	file, err := s.script(name)
	if err != nil {
		return "", err
	}
	script, err := s.guarded(file, func(text string) string {
		return withoutComments(strings.Replace(text, "\n"+restComment+"\n", "\n"+restPlace+"\n", 1))
	})
	if err != nil {
		return "", err
	}
	// A declaration costs time in each run. So three kinds of functions are declared late: after the return, if only
	// the handling of errors needs them; at restComment, if only the lines below it need them; and in a rare function,
	// if only rare functions need them.
	regular, onError, _ := strings.Cut(script, returnReply)
	head, rest, _ := strings.Cut(regular, restPlace+"\n")
	library := split(s.library(file))
	constants, others := splitConstants(library.rest)
	above := library.reachedFrom(head, rareFunctions)
	library = library.withoutAll(above)
	below := library.reachedFrom(rest, rareFunctions)
	onError = library.reachableFrom(onError) + onError
	commonAbove := constants.reachedFrom(others+textOf(withoutRare(above))+head+onError, nil)
	constants = constants.withoutAll(commonAbove)
	commonBelow := constants.reachedFrom(textOf(withoutRare(below))+rest, nil)
	above, err = deferred(above, constants, library)
	if err != nil {
		return "", fmt.Errorf("lua/%s: %w", file.path, err)
	}
	below, err = deferred(below, constants.withoutAll(commonBelow), library.withoutAll(below))
	if err != nil {
		return "", fmt.Errorf("lua/%s: %w", file.path, err)
	}
	return textOf(commonAbove) + others + textOf(above) + head +
		textOf(commonBelow) + textOf(below) + rest + returnReply + onError, nil
}

// returnReply ends a script whose main function did not fail.
const returnReply = "if ok then return reply end\n"

// guarded returns a script with two checks of its user's rights, and with errors that name the key or the command. The
// first check stands before the first write, because a refusal between two writes would leave the work half done; see
// takesBackComment for the exception. The second check, after an error, names the right that was missing. keep is
// applied to each part of the file.
func (s *Sources) guarded(file *source, keep func(text string) string) (string, error) {
	all, err := s.needs(file)
	if err != nil {
		return "", err
	}
	afterFirstWrite, err := s.needsAfterFirstWrite(file)
	if err != nil {
		return "", err
	}
	before, after, _ := cutAtFirstWrite(file.text)
	var types []string
	for i, t := range file.header.Types {
		types = append(types, fmt.Sprintf("KEYS[%d], '%s'", i+1, t))
	}
	return "local function main()\n" +
		keep(before) + guard(file, afterFirstWrite) + keep(after) +
		"end\n" +
		"local ok, reply = pcall(main)\n" +
		returnReply +
		"if is_denied(reply) then " + refusal(file, all) + "end\n" +
		folded("return naming_key(reply, {", types, "})"), nil
}

// cutAtFirstWrite cuts a text at firstWriteComment, and leaves that comment out. If a text has no such comment, all of
// it is returned as after.
func cutAtFirstWrite(text string) (before, after string, found bool) {
	before, rest, found := strings.Cut(text, "\n"+firstWriteComment)
	if !found {
		return "", text, false
	}
	_, after, _ = strings.Cut(rest, "\n")
	return before + "\n", after, true
}

// guard returns the Lua before a script's first write. It refuses a user who lacks the right to one of the commands
// that follow. It is empty for a script that only reads, or that takes back its writes. The check costs a fraction of
// a command, and the server does not count it as a command.
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
		case n.Command == "TYPE": // a script asks for the types of many keys; one of them is enough to check the right
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
		"if lacks then return redis.error_reply('NOPERM this user lacks ' .. lacks[1] .. " +
		"' on \"' .. (lacks[2] or '') ..\n" +
		"  '\", which script " + strings.TrimSuffix(file.path, ".lua") + " may need; nothing was changed') end end\n"
}

// check returns a Lua expression for a command without keys. Its value is false if the user may run the command, else a
// list of the command and the key.
func (n Need) check() string {
	return fmt.Sprintf("not may(%s) and {'%s', ''}", n.luaWords(), n.Command)
}

// checkFor is check for a command with a key. key is an index of KEYS, from 0.
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

// mayBeAbsent reports whether some callers leave a key out. In calls of a function these are the keys policy and rate,
// turns and history, and all keys after turns or history.
func mayBeAbsent(file *source, key int) bool {
	for i, name := range file.header.Keys[:key+1] {
		if name == "turns" || name == "history" {
			return true
		}
		if i == key && (name == "policy" || name == "rate") {
			return true
		}
		if i == key && file.path == "redrive.lua" && name == "stream" { // calls of an earlier release do not give this key
			return true
		}
	}
	return false
}
