package view

import (
	"errors"
	"iter"
)

// errStopped is what give returns if the loop over a Sequence has ended.
var errStopped = errors.New("the loop has ended")

// Sequence yields the values that walk passes to give, and then the error of walk, if any. If give returns an error,
// walk must return it at once.
func Sequence[T any](walk func(give func(T) error) error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		err := walk(func(v T) error {
			if !yield(v, nil) {
				return errStopped
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStopped) {
			var none T
			yield(none, err)
		}
	}
}
