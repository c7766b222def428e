package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// Flush hands over several rows of one ID, also while Run runs.
func TestFlushHandsOverAllRows(t *testing.T) {
	r := newRig(t)
	r.schedule("orders", "a")
	r.cancel("orders", "a")
	r.schedule("orders", "a")
	ctx, stop := context.WithCancel(r.ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = r.relay.Run(ctx) })
	for range 3 {
		if err := r.relay.Flush(r.ctx); err != nil {
			t.Fatal(err)
		}
		r.wantRows(0, 0)
		r.schedule("orders", "b")
	}
	stop()
	running.Wait()
	redistest.Want(t, "calls", fmt.Sprint(r.to.calls[:3]), "[orders: schedule a orders: cancel a orders: schedule a]")
}

// A row that cannot be handed over is an error of Flush, because a test would otherwise see no message and no reason.
func TestFlushTellsOfRowsThatStillWait(t *testing.T) {
	r := newRig(t)
	r.to.refuse["orders"] = bridge.ErrFull
	r.schedule("orders", "a")
	r.schedule("mails", "b")
	if err := r.relay.Flush(r.ctx); err == nil || !strings.Contains(err.Error(), "1 rows still wait") {
		t.Errorf("error: %v", err)
	}
	ended, end := context.WithCancel(r.ctx)
	end()
	if err := r.relay.Flush(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
	r.exec("DROP TABLE duestream_outbox")
	if err := r.relay.Flush(r.ctx); !errors.Is(err, errDatabase) {
		t.Errorf("error: %v", err)
	}
}

func TestTransactRollsBackAfterAnErrorOrAPanic(t *testing.T) {
	r := newRig(t)
	refused := errors.New("refused")
	schedule := func(after func() error) func() (err error) {
		return func() (err error) {
			defer func() {
				if v := recover(); v != nil {
					err = v.(error)
				}
			}()
			return Transact(r.ctx, r.db, func(tx *sql.Tx) error {
				if _, err := r.Schedule(r.ctx, tx, "orders", nil); err != nil {
					return err
				}
				return after()
			})
		}
	}
	for _, after := range []func() error{func() error { return refused }, func() error { panic(refused) }} {
		if err := schedule(after)(); !errors.Is(err, refused) {
			t.Errorf("error: %v", err)
		}
		r.wantRows(0, 0)
	}
	if err := schedule(func() error { return nil })(); err != nil {
		t.Error(err)
	}
	r.wantRows(1, 0)
}
