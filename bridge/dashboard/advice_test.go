package dashboard

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// Regression: the advice for a group whose target is down was to destroy the group.
func TestAdviceForATargetLeadsToTheCallbacks(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	target := admin.PushTarget{Queue: r.Queue, Group: "crm", URL: "https://example.com/"}
	if _, err := r.op.SetPushTarget(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	old := fmt.Sprint(time.Now().Add(-2*time.Minute).UnixMilli(), "-0")
	r.Do("XADD", r.Keys.Stream, old, "id", "a", "payload", "p", "due_ms", "1", "attempt", "1")
	text := r.viewer([]access.Verb{access.Inspect}, "*").eventuallyShows("", "nothing takes them to its target")
	contains(t, text, "Open the callbacks", `href="callbacks?`)
	if strings.Contains(text, "DESTROY") {
		t.Errorf("the advice destroys a group with a target:\n%s", text)
	}
}
