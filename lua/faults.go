package lua

import (
	"cmp"
	"errors"
	"fmt"
)

// Faults returns one error for all faults of a component's configuration. Its text begins with part, the component's
// name. Nil faults are ignored. Without any fault, Faults returns nil.
func Faults(part string, faults ...error) error {
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("%s: %w", part, err)
	}
	return nil
}

// Required returns an error if a field is not set.
func Required(field string, set bool) error {
	if !set {
		return Invalid(field, "nil", "is required")
	}
	return nil
}

// AtLeast returns an error for a value below least.
func AtLeast[T cmp.Ordered](field string, value, least T) error {
	if value < least {
		return Invalid(field, fmt.Sprint(value), "must be at least %v", least)
	}
	return nil
}

// Between returns an error for a value below least or above most.
func Between[T cmp.Ordered](field string, value, least, most T) error {
	if value < least || value > most {
		return Invalid(field, fmt.Sprint(value), "must be between %v and %v", least, most)
	}
	return nil
}
