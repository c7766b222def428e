// Package exit has the exit codes of the command, and the errors and hints that belong to them.
package exit

import (
	"context"
	"errors"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// Exit codes. They are part of the interface: a code never changes its meaning.
const (
	OK          = 0
	Failure     = 1
	Invalid     = 2
	NotFound    = 3
	Duplicate   = 4
	Unavailable = 5
	Partly      = 6
	Full        = 7
	NotDurable  = 8
	Unwell      = 9
	NotYet      = 10
	Interrupted = 130
)

// Help is the table of exit codes for the help.
const Help = `
Exit codes:
  0    done
  1    failed for another reason than those below
  2    wrong command line, environment or input; Redis was not touched
  3    not found, or not scheduled any more
  4    refused: a message with this ID is scheduled, or inside its dedup window
  5    Redis is unavailable; the command may have taken effect (safe to repeat with the same ID)
  6    partly done: some lines, IDs or dead letters were refused, the others are done;
       or nothing done: all of them were refused
  7    Redis is full: the message was not taken
  8    done, but Redis did not confirm the --durability asked for; repeating with the same ID waits again
  9    doctor: something is wrong
  10   wait: the message was not in the state within the --timeout
  130  interrupted
`

// outcome maps an error to its exit code and hint.
type outcome struct {
	err  error
	code int
	hint string
}

// Hints for a message that is not in the schedule. hintAtRunning is the hint of cancel.
const (
	hintNotScheduled = "it became ready, was cancelled, or never existed: " +
		"`duestream show <queue> <id>` says where it is"
	hintAtRunning = hintNotScheduled + "; --running also cancels a message that is ready or held by a worker"
)

// outcomes lists the exit code and the hint of each error. The first match counts. Hints about answers of the server
// come from admin.Hint; the others name commands and flags.
var outcomes = []outcome{
	{ErrSomeWait, Partly, hintAtRunning},
	{ErrPartly, Partly, ""},
	{ErrUnwell, Unwell, ""},
	{ErrNotYet, NotYet, "the same command waits again; `duestream show <queue> <id>` says where the message is"},
	{bridge.ErrDead, Failure, "`duestream dead list <queue>` lists the dead letter, and `duestream dead redrive` gives " +
		"the message another try"},
	{bridge.ErrDone, Failure, "`duestream result <queue> <id>` prints the result"},
	{bridge.ErrNoResult, NotFound, "only a message that was scheduled with --keep-result has a result, after its " +
		"handler has succeeded, and only for that time: `duestream find <id>` says where the message is"},
	{ErrCommandStart, Failure, "does the command exist, and may this user execute it? Its messages are given back " +
		"with no attempt counted, and wait for another worker"},
	{admin.ErrNoQueue, NotFound, "`duestream stats` lists the queues; is --prefix right? `duestream pause` and " +
		"`duestream queue set` take --create for a queue that does not exist yet"},
	{admin.ErrNotEmpty, Failure, "--force deletes the queue with everything in it"},
	{bridge.ErrInvalid, Invalid, ""},
	{admin.ErrShrink, Failure, "messages may be in any partition, and an idle partition costs little. To have fewer, " +
		"use another queue"},
	{admin.ErrKeyed, Failure, "most ordering keys would move to another partition, and their new messages would be " +
		"delivered beside older ones: stop the producers, wait until `duestream stats` shows no messages, grow, and " +
		"wait 10 s; or accept this with --despite-keys"},
	{ErrNoneWaits, NotFound, hintAtRunning},
	{bridge.ErrNotScheduled, NotFound, hintNotScheduled},
	{bridge.ErrNoRecurrence, NotFound, "`duestream recur list` lists the recurrences"},
	{admin.ErrNoToken, NotFound, "`duestream token list` lists the tokens in Redis; the tokens of a gateway's file " +
		"are only in that file"},
	{admin.ErrTokenExists, Failure, "a token cannot be changed: add one with another name, or remove this one first"},
	{admin.ErrNoTarget, NotFound, "`duestream push list` lists the targets"},
	{admin.ErrOneKey, Failure, "`duestream push rotate` first gives the target a new key"},
	{bridge.ErrChanged, Failure, "look at the recurrence with `duestream recur show`, and try again"},
	{admin.ErrNoHistory, NotFound, "`duestream queue set <queue> history=50000/24h` switches on the history of a " +
		"queue, which begins with the next change"},
	{admin.ErrUntold, NotFound, "a history begins when it is switched on, and drops old changes at its limits; " +
		"`duestream find <id>` says where a message is"},
	{admin.ErrNotFound, NotFound, "it was acknowledged by every group, cancelled or purged, or never existed"},
	{admin.ErrNoGroup, NotFound, admin.Hint(admin.ErrNoGroup)},
	{admin.ErrNoFunctions, Failure,
		"functions need Redis 7.0 or any Valkey; the in-process server of `duestream dev` has none: dev uses " +
			"redis-server or valkey-server when one is on the PATH"},
	{admin.ErrForeignFunctions, Failure,
		"`redis-cli FUNCTION LIST LIBRARYNAME duestream` shows the library; --force goes on anyway, and the " +
			"functions of that library are lost"},
	{admin.ErrNewerFunctions, Failure,
		"clients may rely on the newer functions: use a newer duestream, or go back with --force"},
	{ErrFunctionsDenied, Failure, "the user needs +function|list +fcall to look, and +function|load " +
		"+function|delete to change: see docs/operations/users.md"},
	{admin.ErrNewBridge, Failure, "stop the bridges of this release first: `duestream health` lists them; " +
		"--force goes on anyway"},
	{bridge.ErrOldBridge, Failure,
		"`duestream health` lists the bridges; upgrade the older ones first: see docs/operations/upgrade.md"},
	{bridge.ErrNotDurable, NotDurable,
		"are the replicas connected, and is the disk keeping up? see INFO replication and INFO persistence"},
	{bridge.ErrDuplicate, Duplicate,
		"`duestream find <id>` says where the first message is, or that it is finished; `duestream reschedule` moves " +
			"a scheduled message"},
	{bridge.ErrFull, Full, admin.Hint(bridge.ErrFull)},
	{bridge.ErrDenied, Failure, admin.Hint(bridge.ErrDenied)},
	{bridge.ErrUntrusted, Failure, admin.Hint(bridge.ErrUntrusted)},
	{bridge.ErrUnsupported, Failure, admin.Hint(bridge.ErrUnsupported)},
	{bridge.ErrWrongType, Failure, admin.Hint(bridge.ErrWrongType)},
	{bridge.ErrUnavailable, Unavailable, ""},
	{bridge.ErrUncertain, Unavailable, "a reply was lost: `duestream show <queue> <id>` says what holds now"},
	{context.DeadlineExceeded, Unavailable, admin.Hint(context.DeadlineExceeded)},
	{context.Canceled, Interrupted, ""},
}

// Code returns the exit code of an error.
func Code(err error) int {
	if err == nil {
		return OK
	}
	if bad := (*usage.Error)(nil); errors.As(err, &bad) {
		return Invalid
	}
	return outcomeOf(err).code
}

// outcomeOf returns the outcome of an error. An error that is not in the table is a Failure without a hint.
func outcomeOf(err error) outcome {
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o
		}
	}
	return outcome{err, Failure, ""}
}

// Hint returns the hint of the table for an error.
func Hint(err error) string { return outcomeOf(err).hint }
