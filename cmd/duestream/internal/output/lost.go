package output

import (
	"fmt"
)

// LostError: the output could not be written, for example because the disk is full. The command may have done its
// work.
type LostError struct{ Err error }

func (e *LostError) Error() string {
	return fmt.Sprintf("the output is lost: %v; the command may have taken effect", e.Err)
}

func (e *LostError) Unwrap() error { return e.Err }
