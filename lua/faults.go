package lua

import (
	"cmp"
	"errors"
	"fmt"
)

// Faults returns one error for all faults of a component's configuration, or nil if all faults are nil. The text begins
// with the component's name.
func Faults(component string, faults ...error) error {
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("%s: %w", component, err)
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
