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
		Short: "Take what export wrote into a queue",
		Long: `Takes the lines that ` + "`duestream export`" + ` wrote, from a file or standard input, into a queue,
which may have another name and other partitions. Messages keep ID, due time, attempt,
headers and payload; what is due is delivered at once. Dead letters keep their age. The
groups that the queue had are created where they do not exist, so that each gets what
it has not acknowledged. Recurrences go on from what was planned; one whose name the queue
has is left as it is, and counted as a duplicate.

Every line is checked before anything of it is sent, and a line that is wrong is reported
with its number and left out; --dry-run checks all lines and sends none. What is there
already, or was taken within the last day (--dedup), is not taken again, and is counted
(exit code 6): so after a failure give the whole file again, or --from-line. A file without
its last line was not exported to its end; what it has is taken (exit code 6).`,
		Example: `  duestream import emails emails.ndjson
  duestream import emails emails.ndjson --dry-run`,
	}
	fs := cmd.Flags()
	fs.IntVar(&o.fromLine, "from-line", 1, "leave out the lines before this one")
	flags.DelayVar(fs, &o.dedup, "dedup", "remember the ID of each for so long; 0s compares with what is in the queue only")
	fs.BoolVar(&o.noGroups, "no-groups", false, "create no groups but those that a message is for alone")
	fs.BoolVar(&o.dryRun, "dry-run", false, "only check the lines; Redis is not asked")
	a.OldBridgesFlag(cmd)
	a.JSONFlag(cmd)
	return a.WithRun(cmd, func([]string) error {
		if o.fromLine < 1 {
			return usage.Errorf("from-line %d: must be 1 at least", o.fromLine)
		}
		return nil
	}, func(ctx context.Context, args []string) error {
		lines, size, done, err := linefile.Open(a.In, append(args, "-")[1])
		if err != nil {
			return err
		}
		defer done()
		f := &importRun{app: a, queue: args[0], flags: o}
		f.Feeder = linefile.Feeder[admin.Record]{Output: &a.Output, Lines: lines, Size: size, From: o.fromLine, Senders: 1,
			LastRead: 1}
		f.Feeder.Parse, f.Feeder.Send, f.Feeder.Duplicate = f.parse, f.send, f.known
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

	parsed int64 // lines to import
	count  int64 // lines between the first and the last line
	last   *exportEnd
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
	if err := f.End(f.Feeder.Run(ctx), f.report); err != nil {
		return err
	}
	return f.verdict()
}

// header reads the first line. It returns early if ctx ends.
func (f *importRun) header(ctx context.Context) (h exportHeader, err error) {
	var line []byte
	var tooLong bool
	var failed error
	read := make(chan struct{})
	go func() {
		defer close(read)
		line, tooLong, failed = f.Lines.Next()
	}()
	select {
	case <-read:
	case <-ctx.Done():
		return h, ctx.Err()
	}
	switch {
	case errors.Is(failed, io.EOF):
		return h, usage.Errorf("line 1: the file is empty")
	case failed != nil:
		return h, failed
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
		return r, errors.New("stands behind the last line of the export: two files in one?")
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

func (f *importRun) record(line []byte, tooLong bool) (r admin.Record, err error) {
	var is struct {
		Kind string `json:"kind"`
	}
	switch {
	case tooLong:
		return r, linefile.ErrTooLong
	case !utf8.Valid(line):
		return r, errors.New("is not UTF-8")
	case json.Unmarshal(line, &is) == nil && is.Kind == kindEnd:
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

// known returns the text for a record that was imported before. Only the first ten are printed.
func (f *importRun) known(_ admin.Record, err error) string {
	if f.Duplicates > 10 {
		return ""
	}
	return err.Error()
}

// report prints the summary.
func (f *importRun) report(goOn int) error {
	t := importTally{
		Queue: f.queue, Lines: f.parsed, Taken: f.Taken, Duplicates: f.Duplicates, Refused: f.Refused,
		Whole: f.last != nil && f.last.Count == f.count, GoOnFrom: goOn, DryRun: f.flags.dryRun,
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
	var wrong []string
	if f.Refused > 0 {
		wrong = append(wrong, "refused: "+human.Counted(f.Refused, "line")+", see above")
	}
	if f.Duplicates > 0 {
		wrong = append(wrong, human.Thousands(f.Duplicates)+" were there already, or were taken before")
	}
	switch last := f.last; {
	case last == nil:
		wrong = append(wrong, "the file has no last line: it was not exported to its end")
	case last.Count != f.count:
		wrong = append(wrong, fmt.Sprintf("the last line speaks of %s records, and the file has %s", human.Thousands(last.Count),
			human.Thousands(f.count)))
	}
	if f.last != nil && f.last.LeftOut > 0 {
		wrong = append(wrong, human.Thousands(f.last.LeftOut)+" damaged entries were left out of the export")
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%w: %s", exit.Refused(f.Taken > 0), strings.Join(wrong, "; "))
	}
	return nil
}
