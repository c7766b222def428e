package conformance

import (
	"fmt"
)

// A case is a row of steps. A step that fails ends the case, as a failure of testing.T does, so that a case says what it does
// and nothing else. Steps run in the goroutine of their case.

// failure is how a step ends its case; attempt stops it.
type failure struct{ error }

// notTried says why a case could not be tried.
type notTried struct{ why string }

func (e *notTried) Error() string { return e.why }

// failf ends the case: the program did something wrong.
func failf(format string, args ...any) { check(fmt.Errorf(format, args...)) }

// notTriedf ends the case: it cannot be tried.
func notTriedf(format string, args ...any) { check(&notTried{fmt.Sprintf(format, args...)}) }

// check ends the case when there is an error.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// attempt runs steps, and returns what ended them.
func attempt(steps func()) (err error) {
	defer func() {
		if ended := recover(); ended != nil {
			failed, ok := ended.(failure)
			if !ok {
				panic(ended)
			}
			err = failed.error
		}
	}()
	steps()
	return nil
}

// during runs steps, and names the situation when one of them fails.
func during(situation string, steps func()) {
	if err := attempt(steps); err != nil {
		check(fmt.Errorf("%s: %w", situation, err))
	}
}

// ownError says what the kit itself could not do.
type ownError struct{ err error }

func (e *ownError) Error() string { return "could not be judged: " + e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }
