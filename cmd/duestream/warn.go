package main

import (
	"context"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/heartbeat"
)

// warnNoBridge writes a line to standard error when the heartbeats can be read, and no bridge lives: what was asked for is
// done, and nothing will come of it. Who may not read them, or gets no answer in time, is told nothing.
func (a *app) warnNoBridge(ctx context.Context, op *admin.Admin) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	bridges, err := op.Bridges(ctx)
	if err != nil {
		return
	}
	if _, alive := heartbeat.List(bridges, false); alive == 0 {
		a.note("no bridge is alive: nothing becomes ready until one runs (`duestream serve`)")
	}
}
