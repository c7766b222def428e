package stream

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// rig is a queue on a server, driven by hand: no bridge runs.
type rig struct {
	t        *testing.T
	s        *redistest.Server
	c, block rueidis.Client
	prefix   string
	queue    string
	k        lua.Keys
}

func newRig(t *testing.T, s *redistest.Server) *rig {
	t.Helper()
	r := &rig{t: t, s: s, prefix: s.Prefix(t), queue: redistest.Queue(t)}
	r.c = s.Client(t)
	r.block = s.Client(t, func(o *rueidis.ClientOption) { o.AlwaysPipelining = true })
	r.k = lua.NewKeys(r.prefix, r.queue)
	return r
}

func (r *rig) policy(fields map[string]string) {
	r.t.Helper()
	hset := r.c.B().Hset().Key(r.k.Policy).FieldValue()
	for name, value := range fields {
		hset = hset.FieldValue(name, value)
	}
	if err := r.c.Do(r.t.Context(), hset.Build()).Error(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) enqueue(items ...lua.Item) {
	r.t.Helper()
	if _, err := lua.Enqueue(r.t.Context(), r.c, r.k, lua.Token{}, items); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) ready(ids ...string) {
	r.t.Helper()
	items := make([]lua.Item, len(ids))
	for i, id := range ids {
		items[i] = lua.Item{ID: id, When: lua.After(0), Payload: []byte("payload of " + id), Dedup: lua.Refuse}
	}
	r.enqueue(items...)
}

// drainAll drains until nothing is scheduled.
func (r *rig) drainAll() {
	r.t.Helper()
	redistest.Eventually(r.t, 20*time.Second, func() (bool, string) {
		d, err := lua.Drain(r.t.Context(), r.c, r.k, 500, 1<<20)
		if err != nil {
			return false, err.Error()
		}
		return d.Wait < 0, fmt.Sprintf("next due in %s", d.Wait)
	})
}

// pending is how many entries the group holds; -1 when there is no such group, as long as a worker that starts is about to create it.
func (r *rig) pending(group string) int64 {
	r.t.Helper()
	reply, err := r.c.Do(context.WithoutCancel(r.t.Context()), r.c.B().Xpending().Key(r.k.Stream).Group(group).Build()).ToArray()
	if refused, ok := rueidis.IsRedisErr(err); ok && strings.HasPrefix(refused.Error(), "NOGROUP") {
		return -1
	}
	if err != nil {
		r.t.Fatal(err)
	}
	n, _ := reply[0].AsInt64()
	return n
}

func (r *rig) length(key string) int64 {
	r.t.Helper()
	n, err := r.c.Do(context.WithoutCancel(r.t.Context()), r.c.B().Xlen().Key(key).Build()).AsInt64()
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// start runs a worker until the test ends or stop is called; stop returns what Run returned.
func (r *rig) start(cfg WorkerConfig) (w *Worker, stop func() error) {
	r.t.Helper()
	if cfg.Client == nil {
		cfg.Client, cfg.Blocking = r.c, r.block
	}
	cfg.Prefix, cfg.Queue = r.prefix, r.queue
	if cfg.Group == "" {
		cfg.Group = "g"
	}
	w, err := NewWorker(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	r.t.Cleanup(func() { stop() })
	return w, stop
}

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}
