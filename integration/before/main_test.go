package before

import (
	"strings"
	"testing"
)

// In a repository without history, the error says how to get it.
func TestAShallowCloneIsTold(t *testing.T) {
	t.Parallel()
	_, err := build(strings.Repeat("0", 40), "duestream", nil)
	if err == nil || !strings.Contains(err.Error(), "git fetch --unshallow") {
		t.Error(err)
	}
}
