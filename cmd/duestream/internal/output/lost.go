package output

import (
	"fmt"
)

// LostError: the output could not be written, for example because the disk is full. The command may have done its
// work.
type LostError struct{ Err error }

func (e *LostError) Error() string {
	return fmt.Sprintf("what was printed is lost: %v; what was asked for may be done", e.Err)
}

func (e *LostError) Unwrap() error { return e.Err }
