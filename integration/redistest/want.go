package redistest

import "testing"

// Want reports the test as failed unless got equals want. The test continues.
func Want[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// Must returns the value, and panics if there is an error. It is for constructors whose configuration is right.
func Must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
