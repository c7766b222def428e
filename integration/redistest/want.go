package redistest

import "testing"

// Want reports the test as failed unless got equals want. The test continues.
func Want[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}
