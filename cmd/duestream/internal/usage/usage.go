// Package usage has the error of wrong input: on the command line, in the environment or on standard input. A command
// that returns it ends with exit code 2, and has not touched Redis.
package usage

import "fmt"

// Error is an error of the command line, the environment or the input.
type Error struct{ err error }

// Error returns the text of the wrapped error.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the wrapped error.
func (e *Error) Unwrap() error { return e.err }

// Errorf returns an *Error that wraps fmt.Errorf.
func Errorf(format string, args ...any) error { return &Error{fmt.Errorf(format, args...)} }
