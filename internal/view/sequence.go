package view

import (
	"errors"
	"iter"
)

// errEnough: the loop over a Sequence has ended.
var errEnough = errors.New("enough")

// Sequence yields the values that walk gives, and then the error of walk, if any. walk must return the errors of give.
func Sequence[T any](walk func(give func(T) error) error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		err := walk(func(v T) error {
			if !yield(v, nil) {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			var none T
			yield(none, err)
		}
	}
}
