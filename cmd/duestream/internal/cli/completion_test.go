package cli

import (
	"context"
	"fmt"
	"testing"
)

// AskForNames returns at once when ctx has ended, even while the query that it started goes on without regard to ctx.
// The shell of the user must not hang.
func TestAskDoesNotWaitForWhoDoesNotListen(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := &App{RedisURL: "redis://127.0.0.1:1", Prefix: "p"}
	if names := AskForNames(ctx, a, nil); names != nil {
		t.Error(fmt.Sprint(names))
	}
}
