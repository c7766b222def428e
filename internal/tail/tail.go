// Package tail waits for new entries of many streams at once, and consumes none.
package tail

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
	readKeys  = 1000             // the most streams of one blocking read
	readPause = time.Millisecond // the pause between two reads, which bounds the number of reads when many entries come
)

// Config is the configuration of a Reader. All fields are required.
type Config struct {
	Client   rueidis.Client // a client for reads that block
	Block    time.Duration  // how long one read waits
	Count    int            // the most entries of one stream in one read
	Log      *slog.Logger
	Activity string // the name of the reader's work in log lines: "wait for tokens"

	// Added is called for each stream of which a read returned entries, with the ID of the last of them.
	Added  func(key, last string)
	Broken func(error) // is called when a read failed
}

// Reader waits for entries of any number of streams, with one blocking read for up to 1,000 streams; on a cluster with
// one read for each stream. Reading consumes nothing, so a read may be interrupted at any time, and every reader sees
// every entry. It is safe for concurrent use.
type Reader struct {
	cfg     Config
	changed chan struct{}

	mu     sync.Mutex
	keys   map[string]bool
	last   map[string]string         // key → ID of the last entry seen
	states map[string]*loop.Reporter // first key of a read → its reporter
}

// New returns a Reader without streams.
func New(cfg Config) *Reader {
	return &Reader{cfg: cfg, changed: make(chan struct{}, 1), keys: map[string]bool{}, last: map[string]string{},
		states: map[string]*loop.Reporter{}}
}

// Watch sets the streams to read: key → the entry after which to read, "" = from the beginning. The entry counts only
// for streams that were not read before.
func (r *Reader) Watch(after map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := 0
	for key := range after {
		if r.keys[key] {
			known++
		}
	}
	if known == len(after) && known == len(r.keys) {
		return
	}
	maps.DeleteFunc(r.last, func(key, _ string) bool { _, ok := after[key]; return !ok })
	keys := make(map[string]bool, len(after))
	for key, id := range after {
		keys[key] = true
		if !r.keys[key] && id != "" {
			r.last[key] = id
		}
	}
	r.keys = keys
	r.interrupt()
}

// Keys returns the streams that are read, in order.
func (r *Reader) Keys() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.keys))
}

// Advance makes the next read of a stream begin after an entry, unless it begins later already.
func (r *Reader) Advance(key, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.advance(key, id)
}

func (r *Reader) advance(key, id string) {
	if Earlier(cmp.Or(r.last[key], "0-0"), id) {
		r.last[key] = id
	}
}

func (r *Reader) interrupt() {
	loop.Poke(r.changed)
}

// Seen returns the last entry seen of each stream.
func (r *Reader) Seen() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.last)
}

// Reset makes all reads begin at the beginning of their streams. A caller needs it if the last entry of a stream is
// earlier than an entry that was seen before: then the server was flushed, or its clock was set back, and a read after
// the old entry would wait in vain.
func (r *Reader) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.last)
	r.interrupt()
}

// Run reads until ctx ends, and restarts the reads whenever the streams change.
func (r *Reader) Run(ctx context.Context) {
	for ctx.Err() == nil {
		round, cancel := context.WithCancel(ctx)
		var readers sync.WaitGroup
		reads := r.reads()
		r.forget(reads)
		for _, one := range reads {
			readers.Go(func() { r.readAll(round, one.keys, one.block) })
		}
		select {
		case <-ctx.Done():
		case <-r.changed:
		}
		cancel()
		readers.Wait()
	}
}

type read struct {
	keys  []string
	block time.Duration
}

// reads splits the streams into reads. On a cluster each stream has a read of its own. On a single server, each read
// blocks longer the more reads there are, so that the number of requests per second stays the same.
func (r *Reader) reads() []read {
	keys, size, block := r.Keys(), readKeys, r.cfg.Block
	if len(keys) == 0 {
		return nil
	}
	if r.cfg.Client.Mode() == rueidis.ClientModeCluster {
		size = 1
	} else {
		block *= time.Duration((len(keys) + size - 1) / size)
	}
	var all []read
	for chunk := range slices.Chunk(keys, size) {
		all = append(all, read{chunk, block})
	}
	return all
}

func (r *Reader) readAll(ctx context.Context, keys []string, block time.Duration) {
	b, st := loop.NewBackoff(5*time.Second), r.stateOf(keys[0])
	for ctx.Err() == nil {
		added, err := r.Read(ctx, keys, block)
		// Reported even if ctx has ended, because the next read of these streams begins after these entries.
		for _, key := range slices.Sorted(maps.Keys(added)) {
			r.cfg.Added(key, added[key])
		}
		if ctx.Err() != nil {
			return
		}
		st.Report(err)
		pause := readPause
		if err != nil {
			r.cfg.Broken(err)
			pause = b.NextBackOff()
		} else {
			b.Reset()
		}
		loop.SleepUntil(ctx, pause, nil)
	}
}

// forget drops the reporters of reads that no longer exist. It reports their activity as working first, because most of
// these reads failed over a stream that Watch has removed since then.
func (r *Reader) forget(reads []read) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, st := range r.states {
		if !slices.ContainsFunc(reads, func(one read) bool { return one.keys[0] == key }) {
			st.Report(nil)
			delete(r.states, key)
		}
	}
}

func (r *Reader) stateOf(key string) *loop.Reporter {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.states[key] == nil {
		r.states[key] = &loop.Reporter{Log: r.cfg.Log, Activity: r.cfg.Activity}
	}
	return r.states[key]
}

// Read waits for entries that were not seen yet, for at most block. It returns the ID of the last entry of each stream
// that has new entries.
func (r *Reader) Read(ctx context.Context, keys []string, block time.Duration) (map[string]string, error) {
	ids := make([]string, len(keys))
	r.mu.Lock()
	for i, key := range keys {
		ids[i] = cmp.Or(r.last[key], "0-0")
	}
	r.mu.Unlock()
	// Without a deadline, a server that hangs would never be noticed.
	ctx, cancel := context.WithTimeout(ctx, block+loop.CallTimeout)
	defer cancel()
	// rueidis would repeat an XREAD of its own builder by itself, but the caller must learn of a broken connection.
	found, err := r.cfg.Client.Do(ctx, r.cfg.Client.B().Arbitrary("XREAD", "COUNT", strconv.Itoa(r.cfg.Count), "BLOCK",
		strconv.FormatInt(block.Milliseconds(), 10), "STREAMS").
		Keys(keys...).Args(ids...).Blocking()).AsXRead()
	if err != nil && !errors.Is(err, rueidis.Nil) {
		return nil, fmt.Errorf("%s: %w", r.cfg.Activity, lua.Classify("xread", err))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	added := map[string]string{}
	for key, entries := range found {
		if r.keys[key] && len(entries) > 0 {
			added[key] = entries[len(entries)-1].ID
			r.advance(key, added[key])
		}
	}
	return added, nil
}

// Earlier reports whether entry ID a, <ms>-<seq>, comes before b.
func Earlier(a, b string) bool {
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
