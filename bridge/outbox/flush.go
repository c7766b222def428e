package outbox

import (
	"context"
	"fmt"
)

// Flush hands over the rows that wait, and returns when none is left. It takes at most RelayConfig.Timeout for each
// batch. Tests use it in place of Run, and so do short programs. If rows still wait, for example because Redis does not
// answer, the error gives their number. An error of the database is returned. At its end, Flush reads the whole table.
func (r *Relay) Flush(ctx context.Context) error {
	for found := true; found; {
		if err := ctx.Err(); err != nil {
			return err
		}
		var err error
		if found, err = r.pass(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
	status, err := r.cfg.Outbox.Status(ctx, r.cfg.DB)
	if err != nil {
		return fmt.Errorf("%w: %w", errDatabase, err)
	}
	if status.Waiting > 0 {
		return fmt.Errorf("outbox: flush: %d rows still wait; the log of the relay says why", status.Waiting)
	}
	return nil
}
