package redistest

import "testing"

// Want reports a test as failed unless got is want; the test goes on.
func Want[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}
