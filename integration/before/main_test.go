package before

import (
	"strings"
	"testing"
)

// A repository without its history is told how to get it.
func TestAShallowCloneIsTold(t *testing.T) {
	t.Parallel()
	if _, err := build(strings.Repeat("0", 40)); err == nil || !strings.Contains(err.Error(), "git fetch --unshallow") {
		t.Error(err)
	}
}
