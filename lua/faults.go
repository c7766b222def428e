package lua

import (
	"cmp"
	"errors"
	"fmt"
)

// Faults joins the faults of a part's configuration into the error of its constructor, which begins with the name of
// the part. Nil faults are left out. Without any fault it returns nil.
func Faults(part string, faults ...error) error {
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("%s: %w", part, err)
	}
	return nil
}

// Required refuses a field that is not set.
func Required(field string, set bool) error {
	if !set {
		return Invalid(field, "nil", "is required")
	}
	return nil
}

// AtLeast refuses a value less than the least one.
func AtLeast[T cmp.Ordered](field string, value, least T) error {
	if value < least {
		return Invalid(field, fmt.Sprint(value), "must be at least %v", least)
	}
	return nil
}

// Between refuses a value less than the least or greater than the greatest one.
func Between[T cmp.Ordered](field string, value, least, most T) error {
	if value < least || value > most {
		return Invalid(field, fmt.Sprint(value), "must be between %v and %v", least, most)
	}
	return nil
}
