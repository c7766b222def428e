package conformance

import "fmt"

// A case is a sequence of steps. A step that fails ends its case, as a failure of testing.T does. So a case needs no
// error handling. Steps run in the goroutine of their case.

// failure is the panic value of a step that ends its case; attempt recovers it.
type failure struct{ error }

// notTried is the error of a case that could not be tried.
type notTried struct{ why string }

func (e *notTried) Error() string { return e.why }

// failf ends the case with a fault of the program.
func failf(format string, args ...any) { check(fmt.Errorf(format, args...)) }

// notTriedf ends the case as not tried.
func notTriedf(format string, args ...any) { check(&notTried{fmt.Sprintf(format, args...)}) }

// check ends the case if err is not nil.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// attempt runs steps, and returns the error that ended them.
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

// during runs steps. If one of them fails, the error begins with the situation.
func during(situation string, steps func()) {
	if err := attempt(steps); err != nil {
		check(fmt.Errorf("%s: %w", situation, err))
	}
}

// ownError is a failure of the kit itself. It says nothing about the program.
type ownError struct{ err error }

func (e *ownError) Error() string { return "could not be judged: " + e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }
