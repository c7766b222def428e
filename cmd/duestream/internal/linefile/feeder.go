// Package linefile sends the lines of a file to Redis in batches, and knows the line to continue from after a stop.
package linefile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
	"github.com/duestream/duestream/internal/ndjson"
)

const (
	batchLines = 1000
	batchBytes = 1 << 20
)

// Errors that Parse of any feeder may return.
var (
	ErrNoItem  = errors.New("nothing is to be sent of this line")
	ErrTooLong = fmt.Errorf("is longer than %d bytes", ndjson.MaxLine)
)

// Feeder parses the lines of a file and sends the items in batches. It counts lines that were taken, were duplicates
// or were refused. After a stop it knows the line to continue from.
type Feeder[T any] struct {
	Output  *output.Output
	Lines   *ndjson.Reader
	Size    int64 // size of the file in bytes; 0 = unknown
	From    int   // first line to take
	Senders int   // batches that are sent concurrently

	Parse     func(number int, line []byte, tooLong bool) (T, error) // never runs concurrently with Finish's report
	Send      func(context.Context, []T) []error                     // returns an error, or nil, for each item
	Duplicate func(T, error) string                                  // text to print for a duplicate; "" prints nothing

	progress *term.Progress
	batches  chan batch[T]

	mu                         sync.Mutex
	Taken, Duplicates, Refused int64
	firstUnknown               int          // first line whose result is unknown; 0 = none
	unknownErr                 error        // why the result of that line is unknown
	inFlight                   map[int]bool // first lines of the batches that are filling or in flight
	LastRead                   int          // last line that was read
}

// batch is the items of one call, with their line numbers.
type batch[T any] struct {
	items []T
	lines []int
	bytes int
	share float64 // share of the file that is read when the batch is sent; -1 = unknown
}

// Open opens a file of lines; "-" is standard input. size is 0 if it is unknown.
func Open(in io.Reader, name string) (lines *ndjson.Reader, size int64, done func(), err error) {
	if name == "-" {
		return ndjson.NewReader(in), 0, func() {}, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, 0, nil, usage.Errorf("%w", err)
	}
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
		size = info.Size()
	}
	return ndjson.NewReader(file), size, func() { _ = file.Close() }, nil
}

// Run reads in one goroutine and sends in others. It ends at the first error that concerns more than one line.
func (f *Feeder[T]) Run(ctx context.Context) error {
	f.progress, f.batches, f.inFlight = term.NewProgress(f.Output.Err, "lines"), make(chan batch[T]), map[int]bool{}
	runCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var senders sync.WaitGroup
	for range f.Senders {
		senders.Go(func() {
			for {
				select {
				case b, ok := <-f.batches:
					if !ok {
						return
					}
					if err := f.countResults(b, f.Send(context.WithoutCancel(ctx), b.items)); err != nil {
						stop(err)
						return
					}
				case <-runCtx.Done():
					return
				}
			}
		})
	}
	readErr := make(chan error, 1)
	go func() { // Run does not wait for this goroutine after a stop, because it may hang in a read of standard input
		defer close(f.batches)
		readErr <- f.read(runCtx)
	}()
	senders.Wait()
	f.progress.Clear()
	if err := context.Cause(runCtx); err != nil {
		return err
	}
	return <-readErr
}

// read parses lines into batches until the file or ctx ends. It sends a batch when the batch is full, or when no
// further line is buffered.
func (f *Feeder[T]) read(ctx context.Context) error {
	var b batch[T]
	flush := func() bool {
		if len(b.items) == 0 {
			return true
		}
		b.share = -1
		if f.Size > 0 {
			b.share = float64(f.Lines.Bytes) / float64(f.Size)
		}
		select {
		case f.batches <- b:
			b = batch[T]{}
			return true
		case <-ctx.Done():
			return false
		}
	}
	for {
		if len(b.items) >= batchLines || b.bytes >= batchBytes || !f.Lines.Buffered() {
			if !flush() {
				return ctx.Err()
			}
		}
		line, tooLong, err := f.Lines.Next()
		if err == io.EOF {
			flush()
			return nil
		}
		if err != nil {
			flush()
			return fmt.Errorf("read line %d: %w", f.Lines.Number+1, err)
		}
		f.take(&b, f.Lines.Number, line, tooLong)
	}
}

// take adds a line to the batch, or refuses it.
func (f *Feeder[T]) take(b *batch[T], number int, line []byte, tooLong bool) {
	if number == 1 {
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.LastRead = number
	if len(bytes.TrimSpace(line)) == 0 && !tooLong {
		return
	}
	item, err := f.Parse(number, line, tooLong)
	switch {
	case errors.Is(err, ErrNoItem):
	case err != nil:
		f.refuse(number, err)
	default:
		b.items, b.lines, b.bytes = append(b.items, item), append(b.lines, number), b.bytes+len(line)
		f.inFlight[b.lines[0]] = true
	}
}

// countResults counts the results of a batch. An interrupt does not cancel a call in flight, so every result is known.
func (f *Feeder[T]) countResults(b batch[T], results []error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, err := range results {
		line := b.lines[i]
		switch {
		case err == nil:
			f.Taken++
		case errors.Is(err, bridge.ErrNotDurable),
			errors.Is(err, bridge.ErrDuplicate) && errors.Is(err, bridge.ErrUnavailable):
			// The message is stored, but its durability is not confirmed. The run stops. If the line is sent again, the
			// call waits for its durability again.
			f.noteUnknown(line, err)
			if errors.Is(err, bridge.ErrDuplicate) {
				f.Duplicates++
			} else {
				f.Taken++
			}
		case errors.Is(err, bridge.ErrDuplicate), errors.Is(err, admin.ErrKnown):
			f.Duplicates++
			if text := f.Duplicate(b.items[i], err); text != "" {
				f.say(line, text)
			}
		case errors.Is(err, bridge.ErrInvalid):
			f.refuse(line, err)
		default:
			f.noteUnknown(line, err)
		}
	}
	delete(f.inFlight, b.lines[0])
	f.progress.Show(f.Taken+f.Duplicates+f.Refused, b.share)
	return f.unknownErr
}

// noteUnknown notes a line whose result is unknown. It keeps the first such line of the file.
func (f *Feeder[T]) noteUnknown(line int, err error) {
	if f.firstUnknown == 0 || line < f.firstUnknown {
		f.firstUnknown, f.unknownErr = line, err
	}
}

// MostRefusals is how many refusals are printed. A file in another format would otherwise print one for each line.
const MostRefusals = 10

// refuse counts a refused line and prints the reason.
func (f *Feeder[T]) refuse(line int, err error) {
	if f.Refused++; f.Refused > MostRefusals {
		return
	}
	f.say(line, strings.ReplaceAll(err.Error(), "\n", "; "))
	if f.Refused == MostRefusals {
		f.Output.Note("(lines that are refused from here on are only counted)")
	}
}

func (f *Feeder[T]) say(line int, text string) {
	f.progress.Clear()
	f.Output.Note("line %d: %s", line, text)
}

// Finish reports the result of a run, and returns the error of the command. runErr is the error of Run. report prints
// the counts, and the line to continue from unless it is 0.
func (f *Feeder[T]) Finish(runErr error, report func(resumeLine int) error) error {
	const stopped = "stopped: go on with --from-line %d, or with the whole file again (no line is taken twice)"
	f.mu.Lock()
	defer f.mu.Unlock()
	resumeLine := f.firstUnknown
	if resumeLine == 0 && errors.Is(runErr, context.Canceled) {
		resumeLine = max(f.LastRead+1, f.From)
		for firstOfBatch := range f.inFlight {
			resumeLine = min(resumeLine, firstOfBatch)
		}
	}
	printed := report(resumeLine)
	switch {
	case f.firstUnknown > 0:
		return fmt.Errorf(stopped+": %w", resumeLine, f.unknownErr)
	case resumeLine > 0:
		f.Output.Note(stopped, resumeLine)
	case runErr == nil:
		return printed
	}
	return runErr
}

// DedupWindow is the dedup window of messages from a file. --dedup overrides it.
const DedupWindow = 24 * time.Hour
