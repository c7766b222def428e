package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// schedulersOfFile is how many batches of a file are scheduled concurrently.
const schedulersOfFile = 4

type fileTally struct {
	Queue      string `json:"queue"`
	Lines      int64  `json:"lines"`
	Scheduled  int64  `json:"scheduled"`
	Duplicates int64  `json:"duplicates"`
	Refused    int64  `json:"refused"`
	GoOnFrom   int    `json:"go_on_from_line,omitempty"`
}

// scheduleFile schedules a message for each line of a file.
func (a *app) scheduleFile(ctx context.Context, o scheduleOptions, args []string) error {
	if len(args) > 1 {
		return usage.Errorf("a payload and --file cannot be given together")
	}
	if o.fromLine < 1 {
		return usage.Errorf("from-line %d: must be at least 1", o.fromLine)
	}
	queue := args[0]
	defaults, err := o.fileDefaults()
	if err != nil {
		return err
	}
	f := &feeder[bridge.NewMessage]{output: &a.printer, from: o.fromLine, senders: schedulersOfFile}
	var closed func()
	if f.lines, f.size, closed, err = openLines(a.in, o.file); err != nil {
		return err
	}
	defer closed()
	f.parse = func(number int, line []byte, tooLong bool) (bridge.NewMessage, error) {
		switch {
		case number < f.from:
			return bridge.NewMessage{}, errNoItem
		case tooLong:
			return bridge.NewMessage{}, errTooLong
		}
		return parseLine(line, number, defaults)
	}
	f.duplicate = func(m bridge.NewMessage, _ error) string {
		if !o.duplicates {
			return ""
		}
		return "duplicate: " + human.OneLine(m.ID, 256) + " is scheduled, or inside its dedup window"
	}
	return a.produce(ctx, func(client *bridge.Client, op *admin.Admin) error {
		if err := o.checkExpiry(ctx, op, queue); err != nil {
			return err
		}
		f.send = func(ctx context.Context, messages []bridge.NewMessage) []error {
			return sendMessages(ctx, client, queue, messages)
		}
		return a.feedSchedule(ctx, f, queue)
	})
}

// feedSchedule runs a feeder of messages, and prints the counts.
func (a *app) feedSchedule(ctx context.Context, f *feeder[bridge.NewMessage], queue string) error {
	err := f.end(f.run(ctx), func(goOn int) error {
		t := fileTally{queue, f.taken + f.duplicates + f.refused, f.taken, f.duplicates, f.refused, goOn}
		return a.print(t, func() {
			fmt.Fprintf(a.out, "scheduled %s, duplicates %s, refused %s of %s\n",
				human.Thousands(t.Scheduled), human.Thousands(t.Duplicates), human.Thousands(t.Refused), human.Thousands(t.Lines))
		})
	})
	if err == nil && f.refused > 0 {
		err = fmt.Errorf("%w: refused: %s, see above", refusedBeside(f.taken+f.duplicates > 0),
			human.Counted(f.refused, "line"))
	}
	return err
}

// fileDefaults returns the values of the flags, for lines that do not set their own.
func (o scheduleOptions) fileDefaults() (m bridge.NewMessage, err error) {
	window := o.dedup
	if !o.given("dedup") {
		window = fileDedup
	}
	o.dedup = 0 // a file needs no --id for it
	if _, err := o.options(); err != nil {
		return m, err
	}
	m = bridge.NewMessage{Delay: o.when.In, At: o.when.At, Spread: o.spread, Headers: o.headers, Expires: o.expiresAt,
		ExpiresIn: o.expiresIn, Dedup: window}
	o.setRetries(&m)
	return m, nil
}

// sendMessages schedules a batch. Its errors name the wrong field but not the message, because the caller names the
// line.
func sendMessages(ctx context.Context, client *bridge.Client, queue string, messages []bridge.NewMessage) []error {
	errs := make([]error, len(messages))
	results, failed := client.ScheduleBatch(ctx, queue, messages)
	for i := range errs {
		if errs[i] = failed; failed == nil {
			errs[i] = results[i].Err
		}
		var field *bridge.InvalidError
		if errors.As(errs[i], &field) {
			errs[i] = field
		}
	}
	return errs
}
