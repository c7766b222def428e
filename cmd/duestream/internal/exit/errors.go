package exit

import (
	"errors"
	"fmt"

	"github.com/duestream/duestream/bridge"
)

// ErrPartly: some items were refused, and each refusal was reported. The other items are done.
var ErrPartly = errors.New("partly done")

// ErrNothing is an ErrPartly: all items were refused.
var ErrNothing error = nothingDone{}

type nothingDone struct{}

func (nothingDone) Error() string { return "nothing done" }

func (nothingDone) Is(target error) bool { return target == ErrPartly }

// Refused returns the error of a command that refused items. anyDone says that other items are done.
func Refused(anyDone bool) error {
	if anyDone {
		return ErrPartly
	}
	return ErrNothing
}

// Errors of cancel when no message, or not every message, was waiting.
var (
	ErrNoneWaits = fmt.Errorf("%w", bridge.ErrNotScheduled)
	ErrSomeWait  = fmt.Errorf("%w", ErrPartly)
)

// ErrUnwell: the doctor printed findings of the severity that was asked for.
var ErrUnwell = errors.New("something is wrong")

// ErrNotYet: the time of wait was over, and the message was not in the state.
var ErrNotYet = errors.New("not yet")

// ErrFunctionsDenied marks the error of a user who may not list or load functions.
var ErrFunctionsDenied = errors.New("functions are denied")

// ErrCommandStart: the command that work runs does not exist, or may not be executed.
var ErrCommandStart = errors.New("the command cannot be started")
