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

// Errors that the parse of every feeder may return.
var (
	errNoItem  = errors.New("nothing is to be sent of this line")
	errTooLong = fmt.Errorf("is longer than %d bytes", ndjson.MaxLine)
)

// feeder parses the lines of a file and sends the items in batches. It counts the lines that were taken, were duplicates or
// were refused, and knows the line to go on from after a stop.
type feeder[T any] struct {
	app     *app
	lines   *ndjson.Reader
	size    int64 // of the file; 0 = unknown
	from    int   // first line to take
	senders int   // batches that are sent at the same time

	parse     func(number int, line []byte, tooLong bool) (T, error) // not at the same time as report of end
	send      func(context.Context, []T) []error                     // an error for each
	duplicate func(T, error) string                                  // what is said of one that was there before; "" = nothing

	progress *term.Progress
	batches  chan batch[T]

	mu                         sync.Mutex
	taken, duplicates, refused int64
	open                       int          // first line of which it is not known whether it was taken; 0 = none
	err                        error        // why
	under                      map[int]bool // first lines of the batches that were begun, and are not done
	at                         int          // the last line that is in one of them, or needs none
}

// batch is the items of one call, with their line numbers.
type batch[T any] struct {
	items []T
	lines []int
	bytes int
	share float64 // of the file, up to its end
}

// openLines opens a file of lines; "-" is standard input. Its size is 0 where nobody knows it.
func (a *app) openLines(name string) (lines *ndjson.Reader, size int64, done func(), err error) {
	if name == "-" {
		return ndjson.NewReader(a.in), 0, func() {}, nil
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

// run reads in one goroutine and sends in others. The first error that concerns more than one line ends it.
func (f *feeder[T]) run(ctx context.Context) error {
	f.progress, f.batches, f.under = term.NewProgress(f.app.err, "lines"), make(chan batch[T]), map[int]bool{}
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
	go func() { // may stay in a read of standard input when we are told to stop
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

// read parses lines into batches, until the end of the file or of ctx. A batch goes when it is full, or when the next line is
// not there yet.
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

// take puts a line into a batch, or refuses it.
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

// settle counts the results of a batch. An interrupt does not cut the call short, so every result is known.
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
			// It is there, and is not confirmed: the run stops, and a repeat waits again.
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

// mostRefusals is how many refusals are printed: a file of another format would give one for each line.
const mostRefusals = 10

// refuse counts a refused line, and prints the reason.
func (f *feeder[T]) refuse(line int, err error) {
	if f.refused++; f.refused > mostRefusals {
		return
	}
	f.say(line, strings.ReplaceAll(err.Error(), "\n", "; "))
	if f.refused == mostRefusals {
		f.app.note("(lines that are refused from here on are only counted)")
	}
}

func (f *feeder[T]) say(line int, text string) {
	f.progress.Clear()
	f.app.note("line %d: %s", line, text)
}

// end reports a run that has ended; err is what stopped it early, or nil. report prints the counts, and the line to go on from
// unless it is 0.
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
		f.app.note(how, goOn)
	case err == nil:
		return printed
	}
	return err
}
