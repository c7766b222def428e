package cli

import (
	"context"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/heartbeat"
)

// WarnNoBridge prints a note if the heartbeats show that no bridge is alive, because then nothing becomes ready. It
// prints nothing if the heartbeats cannot be read within a second.
func WarnNoBridge(ctx context.Context, a *App, op *admin.Admin) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	bridges, err := op.Bridges(ctx)
	NoteNoBridge(a, bridges, err)
}

// NoteNoBridge prints the note of WarnNoBridge for heartbeats that the caller has read. It prints nothing if err says
// that reading them failed.
func NoteNoBridge(a *App, bridges []admin.Heartbeat, err error) {
	if err != nil {
		return
	}
	if _, alive := heartbeat.List(bridges, false); alive == 0 {
		a.Note("no bridge is alive: nothing becomes ready until one runs (`duestream serve`)")
	}
}
