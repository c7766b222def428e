package messages

import (
	"context"
	"errors"
	"fmt"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/linefile"
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
func scheduleFile(ctx context.Context, a *cli.App, o scheduleOptions, args []string) error {
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
	f := &linefile.Feeder[bridge.NewMessage]{Output: &a.Output, From: o.fromLine, Senders: schedulersOfFile}
	var closeFile func()
	if f.Lines, f.Size, closeFile, err = linefile.Open(a.In, o.file); err != nil {
		return err
	}
	defer closeFile()
	f.Parse = func(number int, line []byte, tooLong bool) (bridge.NewMessage, error) {
		switch {
		case number < f.From:
			return bridge.NewMessage{}, linefile.ErrNoItem
		case tooLong:
			return bridge.NewMessage{}, linefile.ErrTooLong
		}
		return linefile.ParseMessage(line, number, defaults)
	}
	f.Duplicate = func(m bridge.NewMessage, _ error) string {
		if !o.duplicates {
			return ""
		}
		return "duplicate: " + human.OneLine(m.ID, 256) + " is scheduled, or inside its dedup window"
	}
	return a.UseClient(ctx, func(client *bridge.Client, op *admin.Admin) error {
		if err := o.checkExpiry(ctx, op, queue); err != nil {
			return err
		}
		f.Send = func(ctx context.Context, messages []bridge.NewMessage) []error {
			return sendMessages(ctx, client, queue, messages)
		}
		return feedSchedule(ctx, a, f, queue)
	})
}

// feedSchedule runs a feeder of messages, and prints the counts.
func feedSchedule(ctx context.Context, a *cli.App, f *linefile.Feeder[bridge.NewMessage], queue string) error {
	runErr := f.Run(ctx)
	err := f.Finish(runErr, func(resumeLine int) error {
		t := fileTally{queue, f.Taken + f.Duplicates + f.Refused, f.Taken, f.Duplicates, f.Refused, resumeLine}
		return a.Print(t, func() {
			fmt.Fprintf(a.Out, "scheduled %s, duplicates %s, refused %s of %s\n",
				human.Thousands(t.Scheduled), human.Thousands(t.Duplicates), human.Thousands(t.Refused), human.Thousands(t.Lines))
		})
	})
	if err == nil && f.Refused > 0 {
		anyDone := f.Taken+f.Duplicates > 0
		err = fmt.Errorf("%w: refused: %s, see above", exit.Refused(anyDone), human.Counted(f.Refused, "line"))
	}
	return err
}

// fileDefaults returns the values of the flags, for lines that do not set their own.
func (o scheduleOptions) fileDefaults() (m bridge.NewMessage, err error) {
	window := o.dedup
	if !o.given("dedup") {
		window = linefile.DedupWindow
	}
	o.dedup = 0 // options refuses --dedup without --id, but each line of a file has an ID of its own
	if _, err := o.options(); err != nil {
		return m, err
	}
	m = bridge.NewMessage{Delay: o.when.In, At: o.when.At, Spread: o.spread, Headers: o.headers, Expires: o.expiresAt,
		ExpiresIn: o.expiresIn, Dedup: window}
	o.setRetries(&m)
	return m, nil
}

// sendMessages schedules a batch, and returns an error or nil for each message. An error about an invalid field names
// the field without the message, because the caller adds the number of the line.
func sendMessages(ctx context.Context, client *bridge.Client, queue string, messages []bridge.NewMessage) []error {
	errs := make([]error, len(messages))
	results, failed := client.SendBatch(ctx, queue, messages)
	for i := range errs {
		errs[i] = failed
		if failed == nil {
			errs[i] = results[i].Err
		}
		var field *bridge.InvalidError
		if errors.As(errs[i], &field) {
			errs[i] = field
		}
	}
	return errs
}
