package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

const (
	wakeStreams = 1000             // in one blocked read
	wakePause   = time.Millisecond // between two reads, so that a storm of tokens costs a bounded number
	wakeCount   = "100"            // tokens of one stream; there is one unless a producer does not trim
)

// waker waits for wake tokens: one blocked read over the wake streams of all owned queues and the shared one, on a cluster one
// for each. Reading consumes nothing, so a read may be interrupted at any time, and every scheduler sees every token.
type waker struct {
	client  rueidis.Client
	prefix  string
	shared  string // key of the shared wake stream
	block   time.Duration
	log     *slog.Logger
	woken   func(queue string) // "" = the shared stream
	broken  func(error)        // a read failed
	changed chan struct{}

	mu     sync.Mutex
	queues map[string]string         // key → queue
	last   map[string]string         // key → ID of the last token seen
	states map[string]*loop.Reporter // first key of a read → whether it fails
}

func newWaker(cfg Config, woken func(string), broken func(error)) *waker {
	shared := lua.NewGlobals(cfg.Prefix).Wake
	return &waker{
		client: cfg.Blocking, prefix: cfg.Prefix, shared: shared, block: cfg.WakeBlock,
		log: cfg.Logger, woken: woken, broken: broken, changed: make(chan struct{}, 1),
		queues: map[string]string{shared: ""}, last: map[string]string{}, states: map[string]*loop.Reporter{},
	}
}

// watch sets the queues to wait for, besides the shared stream.
func (w *waker) watch(queues []string) {
	keys := map[string]string{w.shared: ""}
	for _, queue := range queues {
		keys[lua.NewKeys(w.prefix, queue).Wake] = queue
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if maps.Equal(keys, w.queues) {
		return
	}
	w.queues = keys
	maps.DeleteFunc(w.last, func(key, _ string) bool { _, ok := keys[key]; return !ok })
	w.interrupt()
}

func (w *waker) interrupt() {
	loop.Poke(w.changed)
}

// seen returns the last token seen of each key.
func (w *waker) seen() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.last)
}

// reset starts all reads at the beginning. It is called when a stream's token is lower than one seen before: the server was
// flushed or its clock set back, and a read from the old token would wait in vain.
func (w *waker) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.last)
	w.interrupt()
}

// run reads until ctx ends, and starts anew whenever the queues change.
func (w *waker) run(ctx context.Context) {
	for ctx.Err() == nil {
		round, cancel := context.WithCancel(ctx)
		var readers sync.WaitGroup
		groups := w.groups()
		w.forget(groups)
		for _, group := range groups {
			readers.Go(func() { w.readAll(round, group.keys, group.block) })
		}
		select {
		case <-ctx.Done():
		case <-w.changed:
		}
		cancel()
		readers.Wait()
	}
}

type wakeGroup struct {
	keys  []string
	block time.Duration
}

// groups splits the keys into reads. On a cluster each key has a read of its own. On one server reads block the longer the more
// of them there are, so that their rate stays the same.
func (w *waker) groups() []wakeGroup {
	w.mu.Lock()
	keys := slices.Sorted(maps.Keys(w.queues))
	w.mu.Unlock()
	size, block := wakeStreams, w.block
	if w.client.Mode() == rueidis.ClientModeCluster {
		size = 1
	} else {
		block *= time.Duration((len(keys) + size - 1) / size)
	}
	var groups []wakeGroup
	for chunk := range slices.Chunk(keys, size) {
		groups = append(groups, wakeGroup{chunk, block})
	}
	return groups
}

func (w *waker) readAll(ctx context.Context, keys []string, block time.Duration) {
	b, st := loop.NewBackoff(maxBackoff), w.stateOf(keys[0])
	for ctx.Err() == nil {
		queues, err := w.Read(ctx, keys, block)
		if ctx.Err() != nil {
			return
		}
		st.Report(err)
		pause := wakePause
		if err != nil {
			w.broken(err)
			pause = b.NextBackOff()
		} else {
			b.Reset()
		}
		for _, queue := range queues {
			w.woken(queue)
		}
		loop.SleepUntil(ctx, pause, nil)
	}
}

// forget drops the reporters of reads that there are no longer. Most of these failed for a key that was left out since.
func (w *waker) forget(groups []wakeGroup) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, st := range w.states {
		if !slices.ContainsFunc(groups, func(g wakeGroup) bool { return g.keys[0] == key }) {
			st.Report(nil)
			delete(w.states, key)
		}
	}
}

func (w *waker) stateOf(key string) *loop.Reporter {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.states[key] == nil {
		w.states[key] = &loop.Reporter{Log: w.log, Activity: "wait for tokens"}
	}
	return w.states[key]
}

// Read waits for tokens that were not seen yet, and returns their queues; none after block.
func (w *waker) Read(ctx context.Context, keys []string, block time.Duration) ([]string, error) {
	ids := make([]string, len(keys))
	w.mu.Lock()
	for i, key := range keys {
		ids[i] = cmp.Or(w.last[key], "0-0")
	}
	w.mu.Unlock()
	// Without a deadline a server that hangs is never noticed.
	ctx, cancel := context.WithTimeout(ctx, block+loop.CallTimeout)
	defer cancel()
	// rueidis repeats the XREAD of its builder by itself, but a broken connection must be seen here.
	read, err := w.client.Do(ctx, w.client.B().Arbitrary("XREAD", "COUNT", wakeCount, "BLOCK",
		strconv.FormatInt(block.Milliseconds(), 10), "STREAMS").
		Keys(keys...).Args(ids...).Blocking()).AsXRead()
	if err != nil && !errors.Is(err, rueidis.Nil) {
		return nil, fmt.Errorf("wait for tokens: %w", lua.Classify("xread", err))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var queues []string
	for key, tokens := range read {
		if queue, ok := w.queues[key]; ok && len(tokens) > 0 {
			w.last[key] = tokens[len(tokens)-1].ID
			queues = append(queues, queue)
		}
	}
	return queues, nil
}

// earlierID compares two stream IDs, <ms>-<seq>.
func earlierID(a, b string) bool {
	aMs, aSeq := idParts(a)
	bMs, bSeq := idParts(b)
	return aMs < bMs || aMs == bMs && aSeq < bSeq
}

func idParts(id string) (ms, seq uint64) {
	before, after, _ := strings.Cut(id, "-")
	ms, _ = strconv.ParseUint(before, 10, 64)
	seq, _ = strconv.ParseUint(after, 10, 64)
	return ms, seq
}
