package cli

import (
	"context"
	"fmt"
	"testing"
)

// The shell continues although ctx has ended and the look ignores it.
func TestAskDoesNotWaitForWhoDoesNotListen(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := &App{RedisURL: "redis://127.0.0.1:1", Prefix: "p"}
	if names := AskForNames(ctx, a, nil); names != nil {
		t.Error(fmt.Sprint(names))
	}
}
