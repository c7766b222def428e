package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/ndjson"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

const (
	batchLines    = 1000
	batchBytes    = 1 << 20
	batchInFlight = 4
)

// fileRun schedules the lines of one file.
type fileRun struct {
	app    *app
	client *bridge.Client
	queue  string
	with   bridge.NewMessage // what lines do not say themselves
	from   int               // first line to take
	list   bool              // the duplicates
	size   int64             // of the file; 0 = unknown

	progress *term.Progress
	batches  chan batch

	mu    sync.Mutex
	tally fileTally
	open  int          // first line of which it is not known whether it was taken; 0 = none
	err   error        // why
	under map[int]bool // first lines of the batches that were begun, and are not done
	at    int          // the last line that is in one of them, or needs none
}

type fileTally struct {
	Queue      string `json:"queue"`
	Lines      int64  `json:"lines"`
	Scheduled  int64  `json:"scheduled"`
	Duplicates int64  `json:"duplicates"`
	Refused    int64  `json:"refused"`
	GoOnFrom   int    `json:"go_on_from_line,omitempty"`
}

// batch is what goes out in one call, with the line number of each message.
type batch struct {
	messages []bridge.NewMessage
	lines    []int
	bytes    int
	share    float64 // of the file, up to its end
}

func (a *app) scheduleFile(ctx context.Context, o scheduleOptions, args []string) error {
	if len(args) > 1 {
		return invalidf("a payload and --file cannot be given together")
	}
	if o.fromLine < 1 {
		return invalidf("from-line %d: must be at least 1", o.fromLine)
	}
	if err := admin.CheckQueue(args[0]); err != nil {
		return err
	}
	f := &fileRun{
		app: a, queue: args[0], from: o.fromLine, list: o.duplicates, under: map[int]bool{}, progress: term.NewProgress(a.err, "lines"),
		batches: make(chan batch), tally: fileTally{Queue: args[0]},
	}
	if err := f.defaults(o); err != nil {
		return err
	}
	in := a.in
	if o.file != "-" {
		file, err := os.Open(o.file)
		if err != nil {
			return invalidf("%w", err)
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			f.size = info.Size()
		}
		in = file
	}
	client, done, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer done()
	f.client = client
	return f.run(ctx, in)
}

// defaults takes what the flags say of all lines.
func (f *fileRun) defaults(o scheduleOptions) error {
	window := o.dedup.d
	if !o.dedup.set {
		window = fileDedup
	}
	o.dedup = delay{} // it needs no --id here
	if _, err := o.options(time.Now()); err != nil {
		return err
	}
	f.with = bridge.NewMessage{Delay: o.when.in.d, At: o.when.at.t, Headers: o.headers, MaxAttempts: o.maxAttempts, Expires: o.expiresAt.t, Dedup: window}
	if o.expiresIn.set {
		f.with.Expires = time.Now().Add(o.expiresIn.d)
	}
	return nil
}

// mark takes down that a line was read; first is the first line of the batch it is in, 0 = it is in none.
func (f *fileRun) mark(line, first int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = line
	if first > 0 {
		f.under[first] = true
	}
}

// goOn returns the first line of which nothing is known, after an interrupt.
func (f *fileRun) goOn() int {
	line := max(f.at+1, f.from)
	for first := range f.under {
		line = min(line, first)
	}
	return line
}

// run reads in one goroutine and sends in a few. The first error that concerns more than one line ends it.
func (f *fileRun) run(ctx context.Context, in io.Reader) error {
	reading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var senders sync.WaitGroup
	for range batchInFlight {
		senders.Go(func() {
			for {
				select {
				case b, ok := <-f.batches:
					if !ok {
						return
					}
					if err := f.send(ctx, b); err != nil {
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
		read <- f.read(reading, ndjson.NewReader(in))
	}()
	senders.Wait()
	f.progress.Clear()
	err := context.Cause(reading)
	if err == nil {
		err = <-read
	}
	return f.finish(err)
}

// read parses lines into batches, until the end of the file or of ctx. A batch goes when it is full, or when the next line is not there yet.
func (f *fileRun) read(ctx context.Context, lines *ndjson.Reader) error {
	var b batch
	flush := func() bool {
		if len(b.messages) == 0 {
			return true
		}
		b.share = -1
		if f.size > 0 {
			b.share = float64(lines.Bytes) / float64(f.size)
		}
		select {
		case f.batches <- b:
			b = batch{}
			return true
		case <-ctx.Done():
			return false
		}
	}
	for {
		if len(b.messages) >= batchLines || b.bytes >= batchBytes || !lines.Buffered() {
			if !flush() {
				return ctx.Err()
			}
		}
		line, tooLong, err := lines.Next()
		if err == io.EOF {
			flush()
			return nil
		}
		if err != nil {
			flush()
			return fmt.Errorf("read line %d: %w", lines.Number+1, err)
		}
		if lines.Number == 1 {
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		if lines.Number < f.from || len(bytes.TrimSpace(line)) == 0 && !tooLong {
			f.mark(lines.Number, 0)
			continue
		}
		if err = fmt.Errorf("is longer than %d bytes", ndjson.MaxLine); !tooLong {
			var m bridge.NewMessage
			if m, err = parseLineWith(line, lines.Number, f.with); err == nil {
				b.messages, b.lines, b.bytes = append(b.messages, m), append(b.lines, lines.Number), b.bytes+len(line)
				f.mark(lines.Number, b.lines[0])
				continue
			}
		}
		f.refuse(lines.Number, err)
		f.mark(lines.Number, 0)
	}
}

// refuse reports a line and counts it.
func (f *fileRun) refuse(line int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tally.Lines++
	if f.tally.Refused++; f.tally.Refused > mostRefusals {
		return
	}
	f.progress.Clear()
	var field *bridge.InvalidError
	if errors.As(err, &field) {
		err = field
	}
	f.app.note("line %d: %s", line, err.Error())
	if f.tally.Refused == mostRefusals {
		f.app.note("%s", noMoreRefusals)
	}
}

// mostRefusals are printed; a file of another kind would be a flood of them.
const mostRefusals = 10

const noMoreRefusals = "(lines that are refused from here on are only counted)"

// send schedules a batch. An interrupt does not cut it short, so that it is known what was taken.
func (f *fileRun) send(ctx context.Context, b batch) error {
	results, failed := f.client.ScheduleBatch(context.WithoutCancel(ctx), f.queue, b.messages)
	for i, line := range b.lines {
		err := failed
		if err == nil {
			err = results[i].Err
		}
		f.record(line, err, b.messages[i].ID)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.under, b.lines[0])
	f.progress.Show(f.tally.Lines, b.share)
	return f.err
}

func (f *fileRun) record(line int, err error, id string) {
	if errors.Is(err, bridge.ErrInvalid) {
		f.refuse(line, err)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		f.tally.Lines++
		f.tally.Scheduled++
	case errors.Is(err, bridge.ErrDuplicate):
		f.tally.Lines++
		if f.tally.Duplicates++; f.list {
			f.progress.Clear()
			f.app.note("line %d: duplicate: %s is scheduled, or inside its dedup window", line, human.OneLine(id, 256))
		}
	default:
		if f.open == 0 || line < f.open {
			f.open, f.err = line, err
		}
	}
}

// finish prints the summary, and says what was wrong.
func (f *fileRun) finish(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tally
	t.GoOnFrom = f.open
	if f.open == 0 && errors.Is(err, context.Canceled) {
		t.GoOnFrom = f.goOn()
	}
	printed := f.app.print(t, func() {
		fmt.Fprintf(f.app.out, "scheduled %s, duplicates %s, refused %s of %s\n",
			human.Thousands(t.Scheduled), human.Thousands(t.Duplicates), human.Thousands(t.Refused), human.Thousands(t.Lines))
	})
	switch {
	case f.open > 0:
		return fmt.Errorf("stopped: go on with --from-line %d, or with the whole file again (what was taken is not taken twice): %w", f.open, f.err)
	case t.GoOnFrom > 0:
		f.app.note("stopped: go on with --from-line %d, or with the whole file again (what was taken is not taken twice)", t.GoOnFrom)
		return err
	case err != nil:
		return err
	case printed != nil:
		return printed
	case t.Refused > 0:
		return fmt.Errorf("%w: refused: %s, see above", errPartly, human.Counted(int(t.Refused), "line"))
	}
	return nil
}
