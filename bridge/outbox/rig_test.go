package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// rig is an outbox in a database of its own, and a relay whose passes the test runs itself.
type rig struct {
	*Outbox
	t     *testing.T
	ctx   context.Context
	db    *sql.DB
	to    *fakeSender
	relay *Relay
	log   queuetest.LogBook
}

func newRig(t *testing.T) *rig {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "shop.db")+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	r := &rig{t: t, ctx: t.Context(), db: db, to: &fakeSender{refuse: map[string]error{}}}
	r.Outbox = redistest.Must(New(Config{Dialect: SQLite}))
	for range 2 { // the second call finds the table
		if err := r.Migrate(r.ctx, db); err != nil {
			t.Fatal(err)
		}
	}
	r.relay = redistest.Must(NewRelay(RelayConfig{Outbox: r.Outbox, DB: db, Client: r.to,
		Timeout: time.Minute, Logger: r.log.Logger()}))
	return r
}

// must schedules a message in a transaction of its own.
func (r *rig) schedule(queue, id string, options ...bridge.Option) {
	r.t.Helper()
	if _, err := r.Schedule(r.ctx, r.db, queue, []byte(id), append(options, bridge.WithID(id))...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) cancel(queue, id string) {
	r.t.Helper()
	if err := r.Cancel(r.ctx, r.db, queue, id); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) exec(query string, args ...any) {
	r.t.Helper()
	if _, err := r.db.ExecContext(r.ctx, query, args...); err != nil {
		r.t.Fatal(err)
	}
}

// drain runs passes until one finds nothing.
func (r *rig) drain() {
	r.t.Helper()
	for range 100 {
		found, err := r.relay.pass(r.ctx)
		if err != nil {
			r.t.Fatal(err)
		}
		if !found {
			return
		}
	}
	r.t.Fatal("rows are found for ever")
}

func (r *rig) status() Status {
	r.t.Helper()
	return redistest.Must(r.Status(r.ctx, r.db))
}

func (r *rig) wantRows(waiting, failed int) {
	r.t.Helper()
	s := r.status()
	redistest.Want(r.t, "waiting and failed", fmt.Sprint(s.Waiting, s.Failed), fmt.Sprint(waiting, failed))
}

// fakeSender records hand-overs, such as "orders: schedule a" and "orders: cancel a".
type fakeSender struct {
	mu     sync.Mutex
	calls  []string
	sent   []bridge.NewMessage
	refuse map[string]error // error by queue, or by ID
	whole  map[string]error // error of every call with this ID, for all messages of the call
	panics string           // every call with this ID panics
	sends  func()           // called by every call; nil = nothing
}

func (f *fakeSender) SendBatch(_ context.Context, queue string, ms []bridge.NewMessage) ([]bridge.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	results := make([]bridge.Result, len(ms))
	if f.sends != nil {
		f.sends()
	}
	for _, m := range ms {
		if m.ID == f.panics {
			panic(m.ID)
		}
		if err := f.whole[m.ID]; err != nil {
			return nil, err
		}
	}
	for i, m := range ms {
		err := f.refuse[queue]
		if err == nil {
			err = f.refuse[m.ID]
		}
		if results[i].Err = err; err == nil {
			f.calls, f.sent = append(f.calls, queue+": schedule "+m.ID), append(f.sent, m)
		}
	}
	return results, nil
}

func (f *fakeSender) Cancel(_ context.Context, queue, id string, _ ...bridge.Scope) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, queue+": cancel "+id)
	return f.refuse[id]
}

// took returns the calls so far, and forgets them.
func (f *fakeSender) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

const hour = time.Hour
