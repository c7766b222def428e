package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// Exit codes. They are part of the interface: a code never changes its meaning.
const (
	exitOK          = 0
	exitFailure     = 1
	exitInvalid     = 2
	exitNotFound    = 3
	exitDuplicate   = 4
	exitUnavailable = 5
	exitPartly      = 6
	exitFull        = 7
	exitNotDurable  = 8
	exitUnwell      = 9
	exitInterrupted = 130
)

// exitCodes is the table of exit codes for the help.
const exitCodes = `
Exit codes:
  0    done
  1    failed for another reason than those below
  2    wrong command line, environment or input; Redis was not touched
  3    not found, or not scheduled any more
  4    refused: a message with this ID is scheduled, or inside its dedup window
  5    Redis is unavailable; what was asked may have been done (safe to repeat with the same ID)
  6    partly done: some lines, IDs or dead letters were refused, the rest is done; or nothing
       done: all of them were refused
  7    Redis is full: the message was not taken
  8    done, but Redis did not confirm the --durability asked for; repeating with the same ID waits again
  9    doctor: something is wrong
  130  interrupted
`

// errPartly: some items were refused, and each refusal was reported. The other items are done.
var errPartly = errors.New("partly done")

// errNothing is an ErrPartly: all items were refused.
var errNothing error = nothingDone{}

type nothingDone struct{}

func (nothingDone) Error() string        { return "nothing done" }
func (nothingDone) Is(target error) bool { return target == errPartly }

// refusedBeside returns the error of a command that refused items. done reports whether it did the other items.
func refusedBeside(done bool) error {
	if done {
		return errPartly
	}
	return errNothing
}

// Errors of cancel when no message, or not every message, was waiting.
var (
	errNoneWaits = fmt.Errorf("%w", bridge.ErrNotScheduled)
	errSomeWait  = fmt.Errorf("%w", errPartly)
)

// errUnwell: the doctor printed findings of the severity that was asked for.
var errUnwell = errors.New("something is wrong")

// outputLost: the output could not be written, for example because the disk is full. The command may have done its
// work.
type outputLost struct{ err error }

func (e *outputLost) Error() string {
	return fmt.Sprintf("what was printed is lost: %v; what was asked for may be done", e.err)
}

func (e *outputLost) Unwrap() error { return e.err }

// outcome maps an error to its exit code and hint.
type outcome struct {
	err  error
	code int
	hint string
}

// hintAtRunning is the hint for messages that cancel does not find in the schedule.
const hintAtRunning = "it became ready, was cancelled, or never was: `duestream show <queue> <id>` says where it is; " +
	"what is ready or held by a worker is cancelled with --running"

// outcomes lists the exit code and the hint of each error. The first match counts. Hints about answers of the server
// come from admin.Hint; the others name commands and flags.
var outcomes = []outcome{
	{errSomeWait, exitPartly, hintAtRunning},
	{errPartly, exitPartly, ""},
	{errUnwell, exitUnwell, ""},
	{errStart, exitFailure, "is it there, and may this user execute it? What it was to work on is given back, with no attempt counted, and waits for a worker that can"},
	{admin.ErrNoQueue, exitNotFound, "`duestream stats` lists the queues; is --prefix right? `duestream pause` and `duestream queue set` take --create for a queue that is to come"},
	{admin.ErrNotEmpty, exitFailure, "with --force it is deleted with all that it holds"},
	{bridge.ErrInvalid, exitInvalid, ""},
	{admin.ErrShrink, exitFailure, "messages may be in any partition; one that nobody writes to costs little. To have fewer, use another queue"},
	{admin.ErrKeyed, exitFailure, "most keys would belong to another partition, and their new messages would be delivered beside those that the queue holds: stop what schedules them, wait until `duestream stats` shows none, grow, and wait 10 s; or accept that with --despite-keys"},
	{errNoneWaits, exitNotFound, hintAtRunning},
	{bridge.ErrNotScheduled, exitNotFound, "it became ready, was cancelled, or never was: `duestream show <queue> <id>` says where it is"},
	{bridge.ErrNoRecurrence, exitNotFound, "`duestream recur list` lists them"},
	{admin.ErrNoToken, exitNotFound, "`duestream token list` lists them; those of a gateway's file are in that file alone"},
	{admin.ErrTokenExists, exitFailure, "a token is not changed: add one with another name, or remove this one first"},
	{admin.ErrNoTarget, exitNotFound, "`duestream push list` lists them"},
	{admin.ErrOneKey, exitFailure, "`duestream push rotate` gives it a new one first"},
	{bridge.ErrChanged, exitFailure, "look at it with `duestream recur show`, and try again"},
	{admin.ErrNoHistory, exitNotFound, "`duestream queue set <queue> history=50000/24h` has a queue keep one; it begins with the next change"},
	{admin.ErrUntold, exitNotFound, "a history goes back to when it was switched on, and to its limits; `duestream find <id>` says where a message is"},
	{admin.ErrNotFound, exitNotFound, "it was acknowledged by every group, cancelled or purged, or never existed"},
	{admin.ErrNoGroup, exitNotFound, admin.Hint(admin.ErrNoGroup)},
	{admin.ErrNoFunctions, exitFailure, "functions need Redis 7.0 or any Valkey; the in-process server of `duestream dev` has none: dev uses redis-server or valkey-server when one is on the PATH"},
	{admin.ErrForeignFunctions, exitFailure, "whose is it? `redis-cli FUNCTION LIST LIBRARYNAME duestream`; --force goes on all the same, and its functions are gone then"},
	{admin.ErrNewerFunctions, exitFailure, "clients may rely on the newer ones: use a newer duestream, or go back with --force"},
	{errFunctionsDenied, exitFailure, "the user needs +function|list +fcall to look, and +function|load +function|delete to change: see docs/operations/users.md"},
	{admin.ErrNewBridge, exitFailure, "stop the bridges of this release first: `duestream health` lists them; --force goes on all the same"},
	{bridge.ErrOldBridge, exitFailure, "`duestream health` lists the bridges; upgrade the older ones first: see docs/operations/upgrade.md"},
	{bridge.ErrNotDurable, exitNotDurable, "are the replicas connected, and is the disk keeping up? see INFO replication and INFO persistence"},
	{bridge.ErrDuplicate, exitDuplicate, "`duestream find <id>` says where it is, or that it is finished; one that is scheduled moves with `duestream reschedule`"},
	{bridge.ErrFull, exitFull, admin.Hint(bridge.ErrFull)},
	{bridge.ErrDenied, exitFailure, admin.Hint(bridge.ErrDenied)},
	{bridge.ErrUntrusted, exitFailure, admin.Hint(bridge.ErrUntrusted)},
	{bridge.ErrUnsupported, exitFailure, admin.Hint(bridge.ErrUnsupported)},
	{bridge.ErrWrongType, exitFailure, admin.Hint(bridge.ErrWrongType)},
	{bridge.ErrUnavailable, exitUnavailable, ""},
	{bridge.ErrUncertain, exitUnavailable, "a reply was lost: `duestream show <queue> <id>` says what holds now"},
	{context.DeadlineExceeded, exitUnavailable, admin.Hint(context.DeadlineExceeded)},
	{context.Canceled, exitInterrupted, ""},
}

// exitCode returns the exit code of an error.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if bad := (*usage.Error)(nil); errors.As(err, &bad) {
		return exitInvalid
	}
	return outcomeOf(err).code
}

// outcomeOf returns the outcome of an error; without one of its own it is a failure.
func outcomeOf(err error) outcome {
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o
		}
	}
	return outcome{err, exitFailure, ""}
}

// hintOf returns the hint of the table for an error.
func hintOf(err error) string { return outcomeOf(err).hint }

// report prints an error and its hint.
func (a *app) report(err error) {
	if err == nil {
		return
	}
	text, hint := err.Error(), a.hint(err)
	if exitCode(err) == exitInterrupted {
		text, hint = "interrupted", ""
	}
	if a.json {
		_ = json.NewEncoder(a.err).Encode(reported{text, exitCode(err), hint})
		return
	}
	p := a.paint(a.err)
	fmt.Fprintf(a.err, "%s %s\n", p.Text(term.Bad, "duestream:"), text)
	if hint != "" {
		fmt.Fprintf(a.err, "%s %s\n", p.Text(term.Strong, "hint:"), hint)
	}
}

// hint returns what the user can do about an error, or "".
func (a *app) hint(err error) string {
	if bad := (*usage.Error)(nil); errors.As(err, &bad) {
		if !a.started {
			return "see `duestream --help`, or --help of the command"
		}
		return ""
	}
	if errors.Is(err, bridge.ErrUnavailable) {
		if known := admin.Hint(err); known != admin.Hint(bridge.ErrUnavailable) { // the server answered
			return known
		}
		return fmt.Sprintf("is Redis running at %s? Set --redis or DUESTREAM_REDIS_URL, or try `duestream dev`",
			hostOf(a.redisURL))
	}
	if errors.Is(err, bridge.ErrDenied) && len(a.passwordsFrom) > 0 {
		return fmt.Sprintf("check the password in %s, the user in the URL, and the ACL rules of that user",
			strings.Join(a.passwordsFrom, " and "))
	}
	return hintOf(err)
}
