package queues

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// exportVersion is the version of the line format. Import accepts only this version.
const exportVersion = 1

// Kinds of the first and the last line of an export.
const (
	kindHeader = "header"
	kindEnd    = "end"
)

// exportHeader is the first line of an export.
type exportHeader struct {
	Kind       string             `json:"kind"`
	Version    int                `json:"version"`
	Queue      string             `json:"queue"`
	Prefix     string             `json:"prefix"`
	Partitions int                `json:"partitions"`
	Groups     []string           `json:"groups"`
	Held       bool               `json:"held"`
	Holds      []admin.RecordKind `json:"holds"`
	Server     int64              `json:"server_ms"` // clock of the server when the export began
	// Recurrences names the recurrences whose occurrences may be among the records. Older releases ignore the field.
	Recurrences []string `json:"recurrences,omitempty"`
}

// source returns the name of the exported queue, with its prefix.
func (h exportHeader) source() string { return h.Prefix + ":" + h.Queue }

// exportEnd is the last line of an export, with the counts of its records.
type exportEnd struct {
	Kind        string `json:"kind"`
	Count       int64  `json:"count"`
	Ready       int64  `json:"ready"`
	Scheduled   int64  `json:"scheduled"`
	Dead        int64  `json:"dead"`
	Recurrences int64  `json:"recurrences,omitempty"`
	LeftOut     int    `json:"left_out"`
}

func (e *exportEnd) add(kind admin.RecordKind) {
	e.Count++
	switch kind {
	case admin.RecordReady:
		e.Ready++
	case admin.RecordScheduled:
		e.Scheduled++
	case admin.RecordDead:
		e.Dead++
	case admin.RecordRecurrence:
		e.Recurrences++
	}
}

// Export returns the command export.
func Export(a *cli.App) *cobra.Command {
	var all, scheduled, dead bool
	cmd := &cobra.Command{
		Use:   "export <queue>",
		Short: "Export a queue as lines of JSON, for import",
		Long: `Writes the contents of a queue to standard output, one JSON object per line, in bounded
memory and steps. The first line names the queue and the kinds of records. The last line
({"kind":"end"}) counts the records. A file without the last line is not complete.

  {"kind":"scheduled","id":"order-42","due_ms":1795216995000,"payload":"hello"}
  {"kind":"ready","id":"order-41","due_ms":…,"payload":…,"for":"mailer","entry":"17…-0"}
  {"kind":"dead","id":"order-40","letter":"17…-0","group":"mailer","reason":"max_attempts",…}
  {"kind":"recurrence","id":"nightly","payload":"{\"cron\":\"0 9 * * 1-5\",…}","plan":"…"}

A payload is a string. It is {"base64":"…"} if it is not UTF-8, or if base64 is much
shorter, and null if it was lost. A record may have headers, attempt (1 if absent), for
(the only group of the message, as in a retry), entry, max_attempts, expires_ms, error,
and extra (unknown fields). If these fields cannot restore a record exactly,
member_base64 and meta_base64, or fields_base64, hold its bytes from Redis.

A ready record is an entry that one group has not acknowledged. Import schedules it for
that group alone, so a message that a worker held is delivered again. Damaged entries
are left out, and counted (exit code 6).

A message that changes its state during the export may be in the file twice or not at
all. For an exact copy, pause the queue (duestream pause <queue>) and stop its workers.
A record of a recurrence has the spec as its payload, and the plan. Settings, targets of
callbacks and dedup windows are not exported.`,
		Example: `  duestream export emails >emails.ndjson
  duestream export emails --dead | jq -r 'select(.reason=="max_attempts") | .id'
  duestream export emails | duestream --redis redis://new:6379 import emails`,
	}
	f := cmd.Flags()
	f.BoolVar(&all, "all", false, "messages, dead letters and recurrences (the default)")
	f.BoolVar(&scheduled, "scheduled", false, "only scheduled messages, retries included")
	f.BoolVar(&dead, "dead", false, "only dead letters")
	cmd.MarkFlagsMutuallyExclusive("all", "scheduled", "dead")
	return a.WithRun(cmd, nil, func(ctx context.Context, args []string) error {
		kinds := []admin.RecordKind{admin.RecordReady, admin.RecordScheduled, admin.RecordDead, admin.RecordRecurrence}
		switch {
		case scheduled:
			kinds = kinds[1:2]
		case dead:
			kinds = kinds[2:3]
		}
		return a.UseAdmin(ctx, func(op *admin.Admin) error { return exportTo(ctx, a, op, args[0], kinds) })
	})
}

func exportTo(ctx context.Context, a *cli.App, op *admin.Admin, queue string, kinds []admin.RecordKind) error {
	if err := op.CheckKnown(ctx, queue); err != nil {
		return err
	}
	stats, err := op.Stats(ctx, queue)
	if err != nil {
		return err
	}
	export := op.Export(queue, kinds...)
	now, err := export.Time(ctx)
	if err != nil {
		return err
	}
	header := exportHeader{
		Kind: kindHeader, Version: exportVersion, Queue: queue, Prefix: a.Prefix, Partitions: stats.Partitions,
		Groups: []string{}, Held: stats.Held,
		Holds: kinds, Server: now.UnixMilli(),
	}
	if slices.Contains(kinds, admin.RecordScheduled) {
		if header.Recurrences, err = export.Recurrences(ctx); err != nil {
			return err
		}
	}
	moving, total := !stats.Held, int64(0)
	for _, g := range stats.Groups {
		header.Groups = append(header.Groups, g.Name)
		total += g.Pending + max(0, g.Lag)
		moving = moving || g.Pending > 0
	}
	if len(stats.Groups) == 0 {
		total = stats.Ready
	}
	if !slices.Contains(kinds, admin.RecordReady) {
		if total > 0 {
			a.Note("not exported, because of the flags: about %s", human.Counted(total, "ready message"))
		}
		total = 0
	} else if moving {
		a.Note("the queue is not paused, or workers hold messages: a message that changes its state during the export " +
			"may be in the file twice or not at all")
	}
	for kind, n := range map[admin.RecordKind]int64{admin.RecordScheduled: stats.Scheduled, admin.RecordDead: stats.Dead} {
		if slices.Contains(kinds, kind) {
			total += n
		} else if n > 0 {
			a.Note("not exported, because of the flags: %s %s", human.Thousands(n), kind)
		}
	}
	out := bufio.NewWriterSize(a.Out, 256<<10)
	lines := output.Encoder(out)
	bar := term.NewProgress(a.Err, "records")
	if term.IsTerminal(a.Out) { // the records on the terminal are progress enough
		bar = term.NewProgress(nil, "")
	}
	end := exportEnd{Kind: kindEnd}
	incomplete := func(err error) error {
		bar.Clear()
		if errors.Is(err, context.Canceled) {
			a.Note("stopped: the export is not complete, and has no last line")
		}
		return fmt.Errorf("the export is not complete, and has no last line: %w", errors.Join(err, out.Flush()))
	}
	if err := lines.Encode(header); err != nil {
		return incomplete(err)
	}
	for record, err := range export.Records(ctx) {
		if err == nil {
			err = lines.Encode(record)
		}
		if err != nil {
			return incomplete(err)
		}
		if end.add(record.Kind); end.Count%1000 == 0 {
			bar.Of(end.Count, total)
		}
	}
	end.LeftOut = export.LeftOut
	if err := lines.Encode(end); err != nil {
		return incomplete(err)
	}
	if err := out.Flush(); err != nil {
		return incomplete(err)
	}
	bar.Clear()
	recurrences := ""
	if end.Recurrences > 0 {
		recurrences = ", recurrences " + human.Thousands(end.Recurrences)
	}
	a.Note("exported %s: ready %s, scheduled %s, dead %s%s", human.Thousands(end.Count), human.Thousands(end.Ready),
		human.Thousands(end.Scheduled), human.Thousands(end.Dead), recurrences)
	if end.LeftOut > 0 {
		return fmt.Errorf("%w: %s entries are damaged, or lost their body, and were left out: see `duestream pending`",
			exit.ErrPartly, human.Thousands(end.LeftOut))
	}
	return nil
}
