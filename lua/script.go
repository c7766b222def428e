package lua

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/rueidis"
)

//go:generate go run ../internal/assemble/generate

// The texts that run. They are generated from the scripts, from lib and from functions: see package assemble.
//
//go:embed generated/*.lua
var generated embed.FS

// script is one Lua script. The lists name the keys and arguments that the Go call sends; TestHeaders compares them
// with the Lua header.
type script struct {
	name     string
	keys     []string
	args     []string // sent once
	each     []string // sent for every item, after args
	everyKey bool     // the list of keys is sent once for every item
	fewer    int      // how many of the last args a call may leave out
	exec     *rueidis.Lua
	source   string
	sha      string
}

// load builds a script from its generated text. rueidis.NewLuaScript makes the client library never repeat a script,
// because only the caller knows whether a repeat is harmless.
func load(name string, keys, args, each []string) *script {
	source := Source(name)
	s := &script{name: name, keys: keys, args: args, each: each, exec: rueidis.NewLuaScript(source), source: source,
		sha: sha1Hex(source)}
	namesBySHA[s.sha] = name
	return s
}

var namesBySHA = map[string]string{} // not changed after the package is initialised

// ScriptName returns the name of the script with this SHA-1; "" if the script is not one of duestream's.
func ScriptName(sha string) string { return namesBySHA[sha] }

// readOnly makes the server refuse writes of the script, so that users who may only read can run it.
func (s *script) readOnly() *script {
	s.exec = rueidis.NewLuaScriptReadOnly(s.source)
	return s
}

// repeatable makes the client library repeat the script after the connection broke. The script must be harmless if it
// runs twice.
func (s *script) repeatable() *script {
	s.exec = rueidis.NewLuaScriptRetryable(s.source)
	return s
}

// leavingOut lets a call leave out up to n of the last args. It must not be used for a script that has each, or that
// takes the actor.
func (s *script) leavingOut(n int) *script {
	s.fewer = n
	return s
}

// Source returns the full text of a script as the server gets it. It panics on a name that does not exist.
func Source(name string) string { return generatedText(name) }

// generatedText returns a generated file without its first line, which only says how the file is made.
func generatedText(name string) string {
	file, err := generated.ReadFile("generated/" + name + ".lua")
	if err != nil {
		panic(fmt.Sprintf("lua: script %s is not part of the build: %v", name, err))
	}
	_, text, _ := strings.Cut(string(file), "\n")
	return text
}

// hasActor reports whether the last argument is the actor. It is if the script writes a history.
func (s *script) hasActor() bool { return slices.Contains(s.keys, "history") }

// check refuses numbers of keys and arguments that do not fit the header.
func (s *script) check(keys, args []string) error {
	itemArgs := len(args) - len(s.args)
	if s.hasActor() {
		itemArgs--
	}
	fits := itemArgs <= 0 && itemArgs >= -s.fewer || itemArgs > 0 && len(s.each) > 0 && itemArgs%len(s.each) == 0
	if s.everyKey {
		fits = fits && len(keys)%len(s.keys) == 0
	} else {
		fits = fits && len(keys) == len(s.keys)
	}
	if !fits {
		return fmt.Errorf("%s: %d keys and %d arguments do not fit its header", s.name, len(keys), len(args))
	}
	return nil
}

// run executes the script in one round trip, two when the server does not know it yet.
func (s *script) run(ctx context.Context, c rueidis.Client, keys, args []string) (rueidis.RedisMessage, error) {
	if err := s.check(keys, args); err != nil {
		return rueidis.RedisMessage{}, err
	}
	reply, err := s.exec.Exec(ctx, c, keys, args).ToMessage()
	if err != nil {
		return reply, Classify(s.name, err)
	}
	return reply, nil
}

// runBehind executes the script after other commands, in one round trip; two when the server does not know it yet. The
// script itself checks what the other commands did.
func (s *script) runBehind(ctx context.Context, c rueidis.Client, cmds []rueidis.Completed, keys,
	args []string) (rueidis.RedisMessage, error) {
	if err := s.check(keys, args); err != nil {
		return rueidis.RedisMessage{}, err
	}
	n := int64(len(keys))
	cmds = append(cmds, c.B().Evalsha().Sha1(s.sha).Numkeys(n).Key(keys...).Arg(args...).Build())
	reply, err := c.DoMulti(ctx, cmds...)[len(cmds)-1].ToMessage()
	if re, answered := rueidis.IsRedisErr(err); answered && re.IsNoScript() {
		reply, err = c.Do(ctx, c.B().Eval().Script(s.source).Numkeys(n).Key(keys...).Arg(args...).Build()).ToMessage()
	}
	if err != nil {
		return reply, Classify(s.name, err)
	}
	return reply, nil
}

// runFor runs the script, and waits for d if there is anything to wait for. An error returned with a reply is about the
// wait.
func (s *script) runFor(ctx context.Context, c rueidis.Client, keys, args []string,
	d Durability) (rueidis.RedisMessage, error) {
	if d.Waits() {
		return s.runDurably(ctx, c, keys, args, d)
	}
	return s.run(ctx, c, keys, args)
}

// integer runs a script that answers with one integer.
func (s *script) integer(ctx context.Context, c rueidis.Client, keys, args []string) (int64, error) {
	reply, err := s.run(ctx, c, keys, args)
	if err != nil {
		return 0, err
	}
	n, err := reply.AsInt64()
	return n, s.unexpected(err)
}

// integers runs a script that answers with a list of want integers, and waits for d. With ErrNotDurable, it returns the
// list, too.
func (s *script) integers(ctx context.Context, c rueidis.Client, keys, args []string, want int, d Durability) ([]int64, error) {
	reply, runErr := s.runFor(ctx, c, keys, args, d)
	if runErr != nil && !errors.Is(runErr, ErrNotDurable) {
		return nil, runErr
	}
	list, err := reply.AsIntSlice()
	if err == nil && len(list) != want {
		err = fmt.Errorf("%d values where %d belong", len(list), want)
	}
	if err != nil {
		return nil, s.unexpected(err)
	}
	return list, runErr
}

// notReached is a script's answer for an item that it did not look at, because the items before it used up its budget
// of bytes.
const notReached = -9

// inParts calls a function with all items, and again with those that were not reached, until each item has an answer.
func inParts[T any](items []T, call func(items []T) ([]int64, error)) ([]int64, error) {
	var answers []int64
	for {
		some, err := call(items[len(answers):])
		if err != nil && len(answers) > 0 {
			return nil, fmt.Errorf("%w: %w", errPart, err)
		}
		if err != nil {
			return nil, err
		}
		done := slices.Index(some, notReached)
		if done < 0 && answers == nil {
			return some, nil
		}
		if done < 0 {
			return append(answers, some...), nil
		}
		if done == 0 {
			return nil, errors.New("unexpected reply: nothing was looked at")
		}
		answers = append(answers, some[:done]...)
	}
}

// list runs a script that answers with a list of at least want values.
func (s *script) list(ctx context.Context, c rueidis.Client, keys, args []string, want int) ([]rueidis.RedisMessage, error) {
	reply, err := s.run(ctx, c, keys, args)
	if err != nil {
		return nil, err
	}
	list, err := reply.ToArray()
	if err == nil && len(list) < want {
		err = fmt.Errorf("%d values where %d belong", len(list), want)
	}
	return list, s.unexpected(err)
}

func (s *script) unexpected(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: unexpected reply: %w", s.name, err)
}

func truths(reply []int64) []bool {
	out := make([]bool, len(reply))
	for i, n := range reply {
		out[i] = n == 1
	}
	return out
}
