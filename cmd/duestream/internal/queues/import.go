package queues

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/linefile"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
	"github.com/duestream/duestream/internal/ndjson"
)

type importFlags struct {
	fromLine int
	dedup    time.Duration
	noGroups bool
	dryRun   bool
}

// Import returns the command import.
func Import(a *cli.App) *cobra.Command {
	o := importFlags{dedup: linefile.DedupWindow}
	cmd := &cobra.Command{
		Use:   "import <queue> [<file>]",
		Short: "Import an exported file into a queue",
		Long: `Imports the lines that ` + "`duestream export`" + ` wrote, from a file or standard input.
The queue may have another name and another number of partitions. Messages keep ID, due
time, attempt, headers and payload. Due messages are delivered at once. Dead letters keep
their age. Groups of the exported queue that do not exist are created, so that each group
gets the messages that it has not acknowledged. Recurrences continue after their planned
occurrences. If the queue already has a recurrence of the same name, that recurrence
stays, and the one in the file is counted as a duplicate.

Each line is checked before it is sent. A wrong line is reported with its number, and
left out. --dry-run checks all lines and sends none. A message that is in the queue, or
was imported within the last day (--dedup), is not imported again, but counted as a
duplicate (exit code 6). So after a failure import the whole file again, or use
--from-line. If the last line is missing, the export was interrupted. The lines of the
file are imported, and the exit code is 6.`,
		Example: `  duestream import emails emails.ndjson
  duestream import emails emails.ndjson --dry-run`,
	}
	fs := cmd.Flags()
	fs.IntVar(&o.fromLine, "from-line", 1, "leave out the lines before this one")
	flags.DelayVar(fs, &o.dedup, "dedup",
		"remember each ID for this time; 0s: compare only with the messages in the queue")
	fs.BoolVar(&o.noGroups, "no-groups", false, "create a group only if a message is for that group alone")
	fs.BoolVar(&o.dryRun, "dry-run", false, "only check the lines, without Redis")
	a.OldBridgesFlag(cmd)
	a.JSONFlag(cmd)
	return a.WithRun(cmd, func([]string) error {
		if o.fromLine < 1 {
			return usage.Errorf("from-line %d: must be at least 1", o.fromLine)
		}
		return nil
	}, func(ctx context.Context, args []string) error {
		queue, file := args[0], append(args, "-")[1] // without a file, standard input
		lines, size, closeFile, err := linefile.Open(a.In, file)
		if err != nil {
			return err
		}
		defer closeFile()
		f := &importRun{app: a, queue: queue, flags: o}
		f.Feeder = linefile.Feeder[admin.Record]{Output: &a.Output, Lines: lines, Size: size, From: o.fromLine, Senders: 1,
			LastRead: 1}
		f.Feeder.Parse, f.Feeder.Send, f.Feeder.Duplicate = f.parse, f.send, f.duplicateText
		return f.run(ctx)
	})
}

type importTally struct {
	Queue      string   `json:"queue"`
	Lines      int64    `json:"lines"`
	Taken      int64    `json:"taken"`
	Duplicates int64    `json:"duplicates"`
	Refused    int64    `json:"refused"`
	Groups     []string `json:"groups_created,omitempty"`
	Whole      bool     `json:"whole"` // the last line is there, and its count is right
	GoOnFrom   int      `json:"go_on_from_line,omitempty"`
	DryRun     bool     `json:"dry_run"`
}

// importRun imports the lines of one export, in order.
type importRun struct {
	linefile.Feeder[admin.Record]
	app   *cli.App
	queue string
	flags importFlags
	to    *admin.Import // nil in a dry run

	parsed int64      // lines to import
	count  int64      // lines between the first and the last line
	last   *exportEnd // nil until the last line is read
}

func (f *importRun) run(ctx context.Context) error {
	header, err := f.header(ctx)
	if err != nil {
		return err
	}
	if f.flags.dryRun {
		return f.feed(ctx)
	}
	return f.app.UseAdmin(ctx, func(op *admin.Admin) (err error) {
		if f.to, err = op.Import(ctx, f.queue, header.source(), f.flags.dedup); err != nil {
			return err
		}
		f.to.Recurrences(header.Recurrences)
		if !f.flags.noGroups {
			if err := f.to.Groups(ctx, header.Groups); err != nil {
				return err
			}
		}
		return f.feed(ctx)
	})
}

// feed runs the feeder, and prints the summary.
func (f *importRun) feed(ctx context.Context) error {
	if err := f.Finish(f.Feeder.Run(ctx), f.report); err != nil {
		return err
	}
	return f.verdict()
}

// header reads the first line. It returns early if ctx ends.
func (f *importRun) header(ctx context.Context) (h exportHeader, err error) {
	var line []byte
	var tooLong bool
	var readErr error
	done := make(chan struct{})
	go func() {
		defer close(done)
		line, tooLong, readErr = f.Lines.Next()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return h, ctx.Err()
	}
	switch {
	case errors.Is(readErr, io.EOF):
		return h, usage.Errorf("line 1: the file is empty")
	case readErr != nil:
		return h, readErr
	case tooLong || json.Unmarshal(bytes.TrimPrefix(line, []byte("\ufeff")), &h) != nil || h.Kind != kindHeader:
		return h, usage.Errorf("line 1: is not the first line of an export (files of messages are for `duestream schedule " +
			"--file`)")
	case h.Version != exportVersion:
		return h, usage.Errorf("line 1: version %d: this duestream reads version %d", h.Version, exportVersion)
	}
	for _, group := range h.Groups {
		if err := admin.CheckGroup(group); err != nil {
			return h, usage.Errorf("line 1: %w", err)
		}
	}
	return h, nil
}

// parse parses a line after the header. The end line is kept in f.last.
func (f *importRun) parse(number int, line []byte, tooLong bool) (r admin.Record, err error) {
	if f.last != nil {
		return r, errors.New("follows the last line of the export: does the file hold two exports?")
	}
	switch r, err = f.record(line, tooLong); {
	case f.last != nil:
		return r, linefile.ErrNoItem
	case number < f.From:
		f.count++
		return r, linefile.ErrNoItem
	}
	f.count++
	f.parsed++
	return r, err
}

// record parses a line. If it is the last line of the export, record sets f.last and returns no record.
func (f *importRun) record(line []byte, tooLong bool) (r admin.Record, err error) {
	var tagged struct {
		Kind string `json:"kind"`
	}
	switch {
	case tooLong:
		return r, linefile.ErrTooLong
	case !utf8.Valid(line):
		return r, errors.New("is not UTF-8")
	case json.Unmarshal(line, &tagged) == nil && tagged.Kind == kindEnd:
		var last exportEnd
		if err := ndjson.Decode(line, &last); err != nil {
			return r, err
		}
		f.last = &last
		return r, nil
	}
	if err := ndjson.Decode(line, &r); err != nil {
		return r, err
	}
	return r, r.Check()
}

func (f *importRun) send(ctx context.Context, records []admin.Record) []error {
	if f.to == nil {
		return make([]error, len(records))
	}
	return f.to.Write(ctx, records)
}

// duplicateText returns the text for a record that was imported before. Only the first ten duplicates get a text.
func (f *importRun) duplicateText(_ admin.Record, err error) string {
	if f.Duplicates > 10 {
		return ""
	}
	return err.Error()
}

// report prints the summary.
func (f *importRun) report(resumeLine int) error {
	t := importTally{
		Queue: f.queue, Lines: f.parsed, Taken: f.Taken, Duplicates: f.Duplicates, Refused: f.Refused,
		Whole: f.last != nil && f.last.Count == f.count, GoOnFrom: resumeLine, DryRun: f.flags.dryRun,
	}
	if f.to != nil {
		t.Groups = f.to.GroupsMade()
	}
	return f.app.Print(t, func() {
		fmt.Fprintf(f.app.Out, "%s %s, duplicates %s, refused %s of %s\n",
			output.Done("imported", t.DryRun), human.Thousands(t.Taken), human.Thousands(t.Duplicates),
			human.Thousands(t.Refused), human.Thousands(t.Lines))
		if len(t.Groups) > 0 {
			fmt.Fprintf(f.app.Out, "created %s: %s\n", human.Counted(len(t.Groups), "group"),
				human.OneLine(strings.Join(t.Groups, ", "), 200))
		}
	})
}

// verdict returns the faults of a file that was read to its end, or nil.
func (f *importRun) verdict() error {
	var faults []string
	if f.Refused > 0 {
		faults = append(faults, "refused: "+human.Counted(f.Refused, "line")+", see above")
	}
	if f.Duplicates > 0 {
		faults = append(faults, human.Thousands(f.Duplicates)+" were there already, or were taken before")
	}
	switch last := f.last; {
	case last == nil:
		faults = append(faults, "the file has no last line: it was not exported to its end")
	case last.Count != f.count:
		faults = append(faults, fmt.Sprintf("the last line counts %s records, and the file has %s",
			human.Thousands(last.Count), human.Thousands(f.count)))
	}
	if f.last != nil && f.last.LeftOut > 0 {
		faults = append(faults, human.Thousands(f.last.LeftOut)+" damaged entries were left out of the export")
	}
	if len(faults) > 0 {
		anyDone := f.Taken > 0
		return fmt.Errorf("%w: %s", exit.Refused(anyDone), strings.Join(faults, "; "))
	}
	return nil
}
