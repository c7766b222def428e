package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

const (
	tomorrow   = 24 * time.Hour // due time of measured messages that are not delivered
	dayAfter   = 48 * time.Hour // due time of the backlog
	chunk      = 1000           // messages, members or entries per request outside the measurement
	stopWithin = 30 * time.Second
	stepLimit  = 30 * time.Second // time limit of short steps: the start of a bridge, freeing memory
)

// rig is the queue that a scenario works on.
type rig struct {
	Config
	c          rueidis.Client
	op         *admin.Admin
	keys       lua.Keys
	client     *bridge.Client
	payload    []byte
	headers    map[string]string // of the messages of fill
	queueNames []string          // further queues, removed at the end
}

// on runs a scenario on a rig: it checks the configuration, schedules the backlog, and always cleans up at the end.
func on(ctx context.Context, cfg Config, scenario func(context.Context, *rig) (Result, error)) (_ Result, err error) {
	if err := cfg.validate(); err != nil {
		return Result{}, err
	}
	r := &rig{Config: cfg, c: cfg.Redis.Client, keys: lua.NewKeys(cfg.Prefix, cfg.Queue),
		payload: make([]byte, cfg.Payload)}
	if r.op, err = admin.New(r.Redis, r.Prefix); err != nil {
		return Result{}, err
	}
	if r.client, err = r.newClient(); err != nil {
		return Result{}, err
	}
	defer func() {
		if ctx.Err() != nil {
			err = ctx.Err() // in place of the errors that the end of ctx caused
		}
		_ = r.client.Close() // before the clean-up, because an open client may still write
		queues := append(r.queueNames, cfg.Queue)
		err = errors.Join(err, Remove(context.WithoutCancel(ctx), cfg.Redis, cfg.Prefix, queues...))
	}()
	if err := r.backlog(ctx); err != nil {
		return Result{}, err
	}
	return scenario(ctx, r)
}

func (r *rig) newClient() (*bridge.Client, error) {
	return bridge.NewClient(bridge.ClientConfig{Redis: r.Redis, Prefix: r.Prefix})
}

// backlog schedules the messages that stay scheduled. It uses the connection for blocking reads, because the client
// library is faster on a connection that had no concurrent calls yet, and the measurement needs such a connection.
func (r *rig) backlog(ctx context.Context) error {
	if r.Backlog == 0 {
		return nil
	}
	other, err := bridge.NewClient(bridge.ClientConfig{
		Redis: &bridge.Redis{Client: r.Redis.Blocking, Blocking: r.Redis.Blocking}, Prefix: r.Prefix,
	})
	if err != nil {
		return err
	}
	measured := r.client
	r.client = other
	defer func() {
		r.client = measured
		_ = other.Close()
	}()
	start := time.Now().Add(dayAfter)
	return r.fill(ctx, "backlog", r.Backlog, func(i int) time.Time {
		return start.Add(time.Duration(i) * time.Millisecond)
	})
}

// fill schedules n messages, the i-th due at due(i).
func (r *rig) fill(ctx context.Context, step string, n int, due func(i int) time.Time) error {
	var next, done atomic.Int64
	size := r.batch()
	return together(ctx, 4, func(ctx context.Context) error {
		for {
			from := int(next.Add(int64(size))) - size
			if from >= n {
				return nil
			}
			batch := make([]bridge.NewMessage, min(size, n-from))
			for i := range batch {
				batch[i] = bridge.NewMessage{Payload: r.payload, Headers: r.headers, At: due(from + i)}
			}
			if err := r.schedule(ctx, r.client, batch); err != nil {
				return err
			}
			r.Progress(step, int(done.Add(int64(len(batch)))), n)
		}
	})
}

// batch returns the size of a batch outside the measurement. A batch has at most some MiB, because the client copies
// it.
func (r *rig) batch() int { return min(chunk, max(1, (8<<20)/max(1, len(r.payload)))) }

// schedule schedules a batch, and returns the first error of its messages.
func (r *rig) schedule(ctx context.Context, client *bridge.Client, batch []bridge.NewMessage) error {
	results, err := client.SendBatch(ctx, r.Queue, batch)
	for i := 0; err == nil && i < len(results); i++ {
		err = results[i].Err
	}
	return err
}

// together runs work in n goroutines. The first error ends all of them, and is returned.
func together(ctx context.Context, n int, work func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if err := work(ctx); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// clear empties the queue after a step. It keeps the backlog, the policy, and the registry entry.
func (r *rig) clear(ctx context.Context) error {
	keys := []string{r.keys.Stream, r.keys.Dead, r.keys.Wake, r.keys.Seen}
	if r.Backlog == 0 {
		keys = append(keys, r.keys.Due, r.keys.Payload, r.keys.Meta)
	} else if err := r.clearBelow(ctx, time.Now().Add(dayAfter-time.Hour)); err != nil {
		return err
	}
	for _, key := range keys {
		if err := r.c.Do(ctx, r.c.B().Unlink().Key(key).Build()).Error(); err != nil {
			return fmt.Errorf("clear %s: %w", r.Queue, lua.Classify("UNLINK", err))
		}
	}
	return r.freed(ctx)
}

// clearBelow removes the messages that are due before t, in bounded steps.
func (r *rig) clearBelow(ctx context.Context, t time.Time) error {
	top := fmt.Sprintf("(%d", t.UnixMilli())
	for {
		members, err := r.c.Do(ctx,
			r.c.B().Zrangebyscore().Key(r.keys.Due).Min("-inf").Max(top).Limit(0, chunk).Build()).AsStrSlice()
		if err != nil || len(members) == 0 {
			return lua.Classify("ZRANGEBYSCORE", err)
		}
		err = firstError("ZREM", r.c.DoMulti(ctx, r.c.B().Zrem().Key(r.keys.Due).Member(members...).Build(),
			r.c.B().Hdel().Key(r.keys.Payload).Field(members...).Build(),
			r.c.B().Hdel().Key(r.keys.Meta).Field(members...).Build()))
		if err != nil {
			return fmt.Errorf("clear %s: %w", r.Queue, err)
		}
	}
}

// freed waits until the server has freed unlinked memory in the background. It waits at most 10 s, because other
// clients may unlink keys, too. It does not wait if the server does not report the pending objects.
func (r *rig) freed(ctx context.Context) error {
	begin := time.Now()
	return until(ctx, stepLimit, "memory is not freed", func() (bool, error) {
		memory, err := r.info(ctx, "memory")
		return memory["lazyfree_pending_objects"] == 0 || time.Since(begin) > stepLimit/3, err
	})
}

// hold holds the queue, or releases it.
func (r *rig) hold(ctx context.Context, held bool) error {
	return r.op.WritePolicy(ctx, r.Queue, "", admin.PolicyUpdate{Held: &held})
}

// createGroups creates the groups that do not exist.
func (r *rig) createGroups(ctx context.Context, names ...string) error {
	for _, name := range names {
		if _, err := bridge.CreateGroup(ctx, r.Redis, r.Prefix, r.Queue, name); err != nil {
			return err
		}
	}
	return nil
}

// part is a running bridge or worker.
type part struct {
	cancel context.CancelFunc
	ended  chan error
}

func start(run func(context.Context) error) *part {
	ctx, cancel := context.WithCancel(context.Background())
	p := &part{cancel, make(chan error, 1)}
	go func() { p.ended <- run(ctx) }()
	return p
}

// stop stops parts, in reverse order.
func stop(parts ...*part) error {
	var errs []error
	for i := len(parts) - 1; i >= 0; i-- {
		parts[i].cancel()
		timeout := time.NewTimer(stopWithin)
		select {
		case err := <-parts[i].ended:
			errs = append(errs, err)
		case <-timeout.C:
			errs = append(errs, fmt.Errorf("a bridge or worker did not stop within %s", stopWithin))
		}
		timeout.Stop()
	}
	return errors.Join(errs...)
}

// serve starts a bridge, and returns when it serves the queue.
func (r *rig) serve(ctx context.Context) (*part, error) {
	b, err := bridge.NewBridge(bridge.Config{Redis: r.Redis, Prefix: r.Prefix})
	if err != nil {
		return nil, err
	}
	if _, err := lua.Register(ctx, r.c, lua.NewGlobals(r.Prefix), []string{r.Queue}); err != nil {
		return nil, err
	}
	p := start(b.Run)
	err = until(ctx, stepLimit, "the bridge does not take up the queue (does another bridge serve this prefix?)",
		func() (bool, error) {
			select {
			case err := <-p.ended:
				p.ended <- err // for stop
				return false, errors.Join(errors.New("the bridge ended"), err)
			default:
			}
			return b.Status().Owned > 0, nil
		})
	if err != nil {
		return nil, errors.Join(err, stop(p))
	}
	return p, nil
}

// probe is the ID of an entry that shows whether a worker reads.
const probe = "probe"

// work starts a worker, and returns when it has read and acknowledged a first entry, which its handler does not see.
// If there is no other group, the entry is then deleted.
func (r *rig) work(ctx context.Context, cfg bridge.WorkerConfig) (*part, error) {
	cfg.Redis, cfg.Prefix, cfg.Queue = r.Redis, r.Prefix, r.Queue
	if cfg.Concurrency == 0 {
		cfg.Concurrency = r.Concurrency
	}
	var probed atomic.Bool
	if handle := cfg.Handler; handle != nil {
		cfg.Handler = func(ctx context.Context, m *bridge.Message) error {
			if m.ID == probe {
				probed.Store(true)
				return nil
			}
			return handle(ctx, m)
		}
	} else {
		cfg.Mux.Otherwise(func(context.Context, *bridge.Message) error { // the probe has no kind
			probed.Store(true)
			return nil
		})
	}
	w, err := bridge.NewWorker(cfg)
	if err != nil {
		return nil, err
	}
	entry := r.c.B().Xadd().Key(r.keys.Stream).Id("*").FieldValue().
		FieldValue(lua.FieldID, probe).FieldValue(lua.FieldPayload, "").
		FieldValue(lua.FieldAttempt, "1").FieldValue(lua.FieldDue, "0").Build()
	if err := r.c.Do(ctx, entry).Error(); err != nil {
		return nil, lua.Classify("XADD", err)
	}
	p := start(w.Run)
	err = until(ctx, stepLimit, "the worker does not read", func() (bool, error) {
		return probed.Load() && w.Stats().Acknowledged > 0, nil
	})
	if err != nil {
		return nil, errors.Join(err, stop(p))
	}
	return p, nil
}

// until waits until ok returns true or an error, at most for limit. After limit it returns an error with the text
// timeoutText.
func until(ctx context.Context, limit time.Duration, timeoutText string, ok func() (bool, error)) error {
	deadline := time.Now().Add(limit)
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for {
		done, err := ok()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil || done:
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("%s, after %s", timeoutText, limit)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// number returns an integer reply.
func (r *rig) number(ctx context.Context, cmd rueidis.Completed) (int, error) {
	n, err := r.c.Do(ctx, cmd).AsInt64()
	return int(n), err
}
