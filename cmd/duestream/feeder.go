package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
	"github.com/duestream/duestream/internal/ndjson"
)

const (
	batchLines = 1000
	batchBytes = 1 << 20
)

// Errors that any feeder's parse may return.
var (
	errNoItem  = errors.New("nothing is to be sent of this line")
	errTooLong = fmt.Errorf("is longer than %d bytes", ndjson.MaxLine)
)

// feeder parses the lines of a file and sends the items in batches. It counts lines that were taken, were duplicates
// or were refused. After a stop it knows the line to continue from.
type feeder[T any] struct {
	output  *printer
	lines   *ndjson.Reader
	size    int64 // size of the file in bytes; 0 = unknown
	from    int   // first line to take
	senders int   // batches that are sent concurrently

	parse     func(number int, line []byte, tooLong bool) (T, error) // never runs concurrently with End's report
	send      func(context.Context, []T) []error                     // returns an error, or nil, for each item
	duplicate func(T, error) string                                  // text to print for a duplicate; "" prints nothing

	progress *term.Progress
	batches  chan batch[T]

	mu                         sync.Mutex
	taken, duplicates, refused int64
	open                       int          // first line whose result is unknown; 0 = none
	err                        error        // why the result of that line is unknown
	under                      map[int]bool // first lines of the batches that are filling or in flight
	at                         int          // last line that was read
}

// batch is the items of one call, with their line numbers.
type batch[T any] struct {
	items []T
	lines []int
	bytes int
	share float64 // share of the file that is read when the batch is sent; -1 = unknown
}

// openLines opens a file of lines; "-" is standard input. size is 0 if it is unknown.
func openLines(in io.Reader, name string) (lines *ndjson.Reader, size int64, done func(), err error) {
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

// run reads in one goroutine and sends in others. It ends at the first error that concerns more than one line.
func (f *feeder[T]) run(ctx context.Context) error {
	f.progress, f.batches, f.under = term.NewProgress(f.output.err, "lines"), make(chan batch[T]), map[int]bool{}
	reading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var senders sync.WaitGroup
	for range f.senders {
		senders.Go(func() {
			for {
				select {
				case b, ok := <-f.batches:
					if !ok {
						return
					}
					if err := f.settle(b, f.send(context.WithoutCancel(ctx), b.items)); err != nil {
						stop(err)
						return
					}
				case <-reading.Done():
					return
				}
			}
		})
	}
	read := make(chan error, 1)
	go func() { // after a stop it may still wait for standard input
		defer close(f.batches)
		read <- f.read(reading)
	}()
	senders.Wait()
	f.progress.Clear()
	if err := context.Cause(reading); err != nil {
		return err
	}
	return <-read
}

// read parses lines into batches until the file or ctx ends. It sends a batch when the batch is full, or when no
// further line is buffered.
func (f *feeder[T]) read(ctx context.Context) error {
	var b batch[T]
	flush := func() bool {
		if len(b.items) == 0 {
			return true
		}
		b.share = -1
		if f.size > 0 {
			b.share = float64(f.lines.Bytes) / float64(f.size)
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
		if len(b.items) >= batchLines || b.bytes >= batchBytes || !f.lines.Buffered() {
			if !flush() {
				return ctx.Err()
			}
		}
		line, tooLong, err := f.lines.Next()
		if err == io.EOF {
			flush()
			return nil
		}
		if err != nil {
			flush()
			return fmt.Errorf("read line %d: %w", f.lines.Number+1, err)
		}
		f.take(&b, f.lines.Number, line, tooLong)
	}
}

// take adds a line to the batch, or refuses it.
func (f *feeder[T]) take(b *batch[T], number int, line []byte, tooLong bool) {
	if number == 1 {
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = number
	if len(bytes.TrimSpace(line)) == 0 && !tooLong {
		return
	}
	item, err := f.parse(number, line, tooLong)
	switch {
	case errors.Is(err, errNoItem):
	case err != nil:
		f.refuse(number, err)
	default:
		b.items, b.lines, b.bytes = append(b.items, item), append(b.lines, number), b.bytes+len(line)
		f.under[b.lines[0]] = true
	}
}

// settle counts the results of a batch. An interrupt does not cancel a call in flight, so every result is known.
func (f *feeder[T]) settle(b batch[T], results []error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, err := range results {
		line := b.lines[i]
		switch {
		case err == nil:
			f.taken++
		case errors.Is(err, bridge.ErrNotDurable),
			errors.Is(err, bridge.ErrDuplicate) && errors.Is(err, bridge.ErrUnavailable):
			// The message is stored, but its durability is not confirmed: the run stops, and a repeat of the line
			// waits again.
			if f.open == 0 || line < f.open {
				f.open, f.err = line, err
			}
			if errors.Is(err, bridge.ErrDuplicate) {
				f.duplicates++
			} else {
				f.taken++
			}
		case errors.Is(err, bridge.ErrDuplicate), errors.Is(err, admin.ErrKnown):
			f.duplicates++
			if text := f.duplicate(b.items[i], err); text != "" {
				f.say(line, text)
			}
		case errors.Is(err, bridge.ErrInvalid):
			f.refuse(line, err)
		case f.open == 0 || line < f.open:
			f.open, f.err = line, err
		}
	}
	delete(f.under, b.lines[0])
	f.progress.Show(f.taken+f.duplicates+f.refused, b.share)
	return f.err
}

// mostRefusals is how many refusals are printed. A file in another format would otherwise print one for each line.
const mostRefusals = 10

// refuse counts a refused line and prints the reason.
func (f *feeder[T]) refuse(line int, err error) {
	if f.refused++; f.refused > mostRefusals {
		return
	}
	f.say(line, strings.ReplaceAll(err.Error(), "\n", "; "))
	if f.refused == mostRefusals {
		f.output.note("(lines that are refused from here on are only counted)")
	}
}

func (f *feeder[T]) say(line int, text string) {
	f.progress.Clear()
	f.output.note("line %d: %s", line, text)
}

// end reports the result of a run. err is the error that stopped it early, or nil. report prints the counts, and the
// line to continue from unless it is 0.
func (f *feeder[T]) end(err error, report func(goOn int) error) error {
	const how = "stopped: go on with --from-line %d, or with the whole file again (what was taken is not taken twice)"
	f.mu.Lock()
	defer f.mu.Unlock()
	goOn := f.open
	if goOn == 0 && errors.Is(err, context.Canceled) {
		goOn = max(f.at+1, f.from)
		for first := range f.under {
			goOn = min(goOn, first)
		}
	}
	printed := report(goOn)
	switch {
	case f.open > 0:
		return fmt.Errorf(how+": %w", goOn, f.err)
	case goOn > 0:
		f.output.note(how, goOn)
	case err == nil:
		return printed
	}
	return err
}
