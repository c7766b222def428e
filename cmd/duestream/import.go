package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/ndjson"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

type importFlags struct {
	fromLine int
	dedup    delay
	noGroups bool
	dryRun   bool
}

func (a *app) importCommand() *cobra.Command {
	o := importFlags{dedup: delay{field: "dedup", d: fileDedup}}
	cmd := &cobra.Command{
		Use:   "import <queue> [<file>]",
		Short: "Take what export wrote into a queue",
		Long: `Takes the lines that ` + "`duestream export`" + ` wrote, from a file or standard input, into a queue,
which may have another name and other partitions. Messages keep ID, due time, attempt,
headers and payload; what is due is delivered at once. Dead letters keep their age. The
groups that the queue had are created where they do not exist, so that each gets what
it has not acknowledged.

Every line is checked before anything of it is sent, and a line that is wrong is reported
with its number and left out; --dry-run checks all lines and sends none. What is there
already, or was taken within the last day (--dedup), is not taken again, and is counted
(exit code 6): so after a failure give the whole file again, or --from-line. A file without
its last line was not exported to its end; what it has is taken (exit code 6).`,
		Example: `  duestream import emails emails.ndjson
  duestream import emails emails.ndjson --dry-run`,
		Args: cobra.RangeArgs(1, 2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveDefault // a file
			}
			return a.completeQueue(cmd, args, typed)
		},
		RunE: a.do(func(ctx context.Context, args []string) error {
			if err := admin.CheckQueue(args[0]); err != nil {
				return err
			}
			if o.fromLine < 1 {
				return invalidf("from-line %d: must be 1 at least", o.fromLine)
			}
			f := &importRun{app: a, queue: args[0], flags: o, progress: term.NewProgress(a.err, "lines"), tally: importTally{Queue: args[0], DryRun: o.dryRun}}
			in := a.in
			if len(args) > 1 && args[1] != "-" {
				file, err := os.Open(args[1])
				if err != nil {
					return invalidf("%w", err)
				}
				defer file.Close()
				if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
					f.size = info.Size()
				}
				in = file
			}
			return f.run(ctx, in)
		}),
	}
	fs := cmd.Flags()
	fs.IntVar(&o.fromLine, "from-line", 1, "leave out the lines before this one")
	fs.Var(&o.dedup, "dedup", "remember the ID of each for so long; 0s compares with what is in the queue only")
	fs.BoolVar(&o.noGroups, "no-groups", false, "create no groups but those that a message is for alone")
	fs.BoolVar(&o.dryRun, "dry-run", false, "only check the lines; Redis is not asked")
	a.jsonFlag(cmd)
	return cmd
}

type importTally struct {
	Queue      string   `json:"queue"`
	Lines      int64    `json:"lines"`
	Taken      int64    `json:"taken"`
	Duplicates int64    `json:"duplicates"`
	Refused    int64    `json:"refused"`
	Groups     []string `json:"groups_created,omitempty"`
	Whole      bool     `json:"whole"` // the last line is there, and says as many as there are
	GoOnFrom   int      `json:"go_on_from_line,omitempty"`
	DryRun     bool     `json:"dry_run"`
}

// importRun takes the lines of one file, in order.
type importRun struct {
	app      *app
	queue    string
	flags    importFlags
	size     int64 // of the file; 0 = unknown
	progress *term.Progress
	lines    *ndjson.Reader
	number   int           // of the last line that was read
	offset   int64         // behind it; lines itself belongs to whoever reads
	to       *admin.Import // nil in a dry run
	tally    importTally

	records []admin.Record
	numbers []int // line of each
	bytes   int
	count   int64 // lines between the first and the last
	end     *exportEnd
}

func (f *importRun) run(ctx context.Context, in io.Reader) error {
	f.lines = ndjson.NewReader(in)
	header, err := f.header(ctx)
	if err != nil {
		return err
	}
	if !f.flags.dryRun {
		op, done, err := f.app.admin(ctx)
		if err != nil {
			return err
		}
		defer done()
		if f.to, err = op.Import(ctx, f.queue, header.source(), f.flags.dedup.d); err != nil {
			return err
		}
		if !f.flags.noGroups {
			if err := f.to.Groups(ctx, header.Groups); err != nil {
				return err
			}
		}
	}
	err = f.read(ctx)
	f.progress.Clear()
	return f.finish(err)
}

// next returns the next line, also when ctx ends while it is waited for.
func (f *importRun) next(ctx context.Context) (line []byte, tooLong bool, err error) {
	if f.lines.Buffered() {
		line, tooLong, err = f.lines.Next()
		f.number, f.offset = f.lines.Number, f.lines.Bytes
		return line, tooLong, err
	}
	type answer struct {
		line    []byte
		tooLong bool
		err     error
	}
	read := make(chan answer, 1)
	go func() {
		line, tooLong, err := f.lines.Next()
		read <- answer{line, tooLong, err}
	}()
	select {
	case got := <-read:
		f.number, f.offset = f.lines.Number, f.lines.Bytes
		return got.line, got.tooLong, got.err
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}

// header reads the first line.
func (f *importRun) header(ctx context.Context) (h exportHeader, err error) {
	line, tooLong, err := f.next(ctx)
	switch {
	case errors.Is(err, io.EOF):
		return h, invalidf("line 1: the file is empty")
	case err != nil:
		return h, err
	case tooLong || json.Unmarshal(bytes.TrimPrefix(line, []byte("\ufeff")), &h) != nil || h.Kind != kindHeader:
		return h, invalidf("line 1: is not the first line of an export (files of messages are for `duestream schedule --file`)")
	case h.Version != exportVersion:
		return h, invalidf("line 1: version %d: this duestream reads version %d", h.Version, exportVersion)
	}
	for _, group := range h.Groups {
		if err := admin.CheckGroup(group); err != nil {
			return h, invalidf("line 1: %w", err)
		}
	}
	return h, nil
}

// read takes the lines behind the first.
func (f *importRun) read(ctx context.Context) error {
	for {
		if len(f.records) >= batchLines || f.bytes >= batchBytes || len(f.records) > 0 && !f.lines.Buffered() {
			if err := f.send(ctx); err != nil {
				return err
			}
		}
		line, tooLong, err := f.next(ctx)
		if errors.Is(err, io.EOF) {
			return f.send(ctx)
		}
		if err != nil {
			if sent := f.send(context.WithoutCancel(ctx)); sent != nil {
				return sent
			}
			f.tally.GoOnFrom = f.number + 1
			return err
		}
		if len(bytes.TrimSpace(line)) == 0 && !tooLong {
			continue
		}
		number := f.number
		if f.end != nil {
			f.refuse(number, errors.New("stands behind the last line of the export: two files in one?"))
			continue
		}
		record, err := f.parse(line, tooLong)
		switch {
		case f.end != nil:
			continue
		case number < f.flags.fromLine:
			f.count++
			continue
		}
		f.count++
		if f.tally.Lines++; err != nil {
			f.refuse(number, err)
			continue
		}
		f.records, f.numbers, f.bytes = append(f.records, record), append(f.numbers, number), f.bytes+len(line)
	}
}

// parse reads a line behind the first. The last one is kept in f.end.
func (f *importRun) parse(line []byte, tooLong bool) (r admin.Record, err error) {
	var is struct {
		Kind string `json:"kind"`
	}
	switch {
	case tooLong:
		return r, fmt.Errorf("is longer than %d bytes", ndjson.MaxLine)
	case !utf8.Valid(line):
		return r, errors.New("is not UTF-8")
	case json.Unmarshal(line, &is) == nil && is.Kind == kindEnd:
		var end exportEnd
		if err := ndjson.Decode(line, &end); err != nil {
			return r, err
		}
		f.end = &end
		return r, nil
	}
	if err := ndjson.Decode(line, &r); err != nil {
		return r, err
	}
	return r, r.Check()
}

// send writes what has been gathered. An interrupt does not cut it short, so that it is known what was taken.
func (f *importRun) send(ctx context.Context) error {
	if len(f.records) == 0 {
		return ctx.Err()
	}
	var results []error
	if f.to == nil {
		results = make([]error, len(f.records))
	} else {
		results = f.to.Write(context.WithoutCancel(ctx), f.records)
	}
	var failed error
	for i, err := range results {
		switch {
		case err == nil:
			f.tally.Taken++
		case errors.Is(err, admin.ErrKnown):
			if f.tally.Duplicates++; f.tally.Duplicates <= 10 {
				f.say(f.numbers[i], err)
			}
		case errors.Is(err, bridge.ErrInvalid):
			f.refuse(f.numbers[i], err)
		case failed == nil:
			failed, f.tally.GoOnFrom = err, f.numbers[i]
		}
	}
	f.records, f.numbers, f.bytes = f.records[:0], f.numbers[:0], 0
	if failed != nil {
		return failed
	}
	share := -1.0
	if f.size > 0 {
		share = float64(f.offset) / float64(f.size)
	}
	f.progress.Show(f.tally.Lines, share)
	if ctx.Err() != nil {
		f.tally.GoOnFrom = f.number + 1
	}
	return ctx.Err()
}

// refuse reports a line that is wrong, and counts it.
func (f *importRun) refuse(line int, err error) {
	if f.tally.Refused++; f.tally.Refused > mostRefusals {
		return
	}
	f.say(line, err)
	if f.tally.Refused == mostRefusals {
		f.app.note("%s", noMoreRefusals)
	}
}

func (f *importRun) say(line int, err error) {
	f.progress.Clear()
	f.app.note("line %d: %s", line, strings.ReplaceAll(err.Error(), "\n", "; "))
}

// finish prints the summary, and says what was wrong.
func (f *importRun) finish(err error) error {
	t := &f.tally
	if f.to != nil {
		t.Groups = f.to.GroupsMade()
	}
	t.Whole = f.end != nil && f.end.Count == f.count
	printed := f.app.print(t, func() {
		verb := "imported"
		if t.DryRun {
			verb = "would be imported"
		}
		fmt.Fprintf(f.app.out, "%s %s, duplicates %s, refused %s of %s\n",
			verb, human.Thousands(t.Taken), human.Thousands(t.Duplicates), human.Thousands(t.Refused), human.Thousands(t.Lines))
		if len(t.Groups) > 0 {
			fmt.Fprintf(f.app.out, "created %s: %s\n", human.Counted(len(t.Groups), "group"), human.OneLine(strings.Join(t.Groups, ", "), 200))
		}
	})
	switch {
	case errors.Is(err, context.Canceled) && t.GoOnFrom > 0:
		f.app.note("stopped: go on with --from-line %d, or with the whole file again (what was taken is not taken twice)", t.GoOnFrom)
		return err
	case err != nil && t.GoOnFrom > 0:
		return fmt.Errorf("stopped: go on with --from-line %d, or with the whole file again (what was taken is not taken twice): %w", t.GoOnFrom, err)
	case err != nil:
		return err
	case printed != nil:
		return printed
	}
	var wrong []string
	if t.Refused > 0 {
		wrong = append(wrong, "refused: "+human.Counted(int(t.Refused), "line")+", see above")
	}
	if t.Duplicates > 0 {
		wrong = append(wrong, human.Thousands(t.Duplicates)+" were there already, or were taken before")
	}
	switch {
	case f.end == nil:
		wrong = append(wrong, "the file has no last line: it was not exported to its end")
	case !t.Whole:
		wrong = append(wrong, fmt.Sprintf("the last line speaks of %s records, and the file has %s", human.Thousands(f.end.Count), human.Thousands(f.count)))
	}
	if f.end != nil && f.end.LeftOut > 0 {
		wrong = append(wrong, human.Thousands(int64(f.end.LeftOut))+" damaged entries were left out of the export")
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%w: %s", errPartly, strings.Join(wrong, "; "))
	}
	return nil
}
