// Package usage has the error of wrong input: on the command line, in the environment or on standard input. With it the command
// ends with exit code 2, and has not touched Redis.
package usage

import "fmt"

// Error is an error of the command line, the environment or the input.
type Error struct{ err error }

// Error is the text of what is wrong.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns what is wrong.
func (e *Error) Unwrap() error { return e.err }

// Errorf returns an *Error with a text.
func Errorf(format string, args ...any) error { return &Error{fmt.Errorf(format, args...)} }
