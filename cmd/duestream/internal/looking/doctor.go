package looking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

type doctorOptions struct {
	quick, repair, dryRun bool
	severityFlag          string
	minSeverity           doctor.Severity // lowest severity that makes the command fail
}

// Doctor returns the command doctor.
func Doctor(a *cli.App) *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor [<queue>...]",
		Short: "Check the server's settings, and that all queues are in order",
		Long: `Checks the settings of the server, and everything that duestream keeps there, for some
queues or for all. A finding names a fault, why it matters, and what to do.
docs/operations/doctor.md lists all codes. The doctor checks a fault again some seconds
later, because a busy system always has keys between two states. A check writes nothing,
and reads in small steps.

--repair makes only changes that can neither lose a message nor deliver one that was
handled. It prints the changes, makes them, and checks again. --dry-run only prints
them.

The exit code is 9 if a finding of the given --severity, or a worse one, remains.`,
		Example: `  duestream doctor
  duestream doctor emails --quick
  duestream doctor --severity error --json
  duestream doctor --repair --dry-run`,
	}
	f := cmd.Flags()
	f.BoolVar(&o.quick, "quick", false, "check only settings, counts and samples")
	f.BoolVar(&o.repair, "repair", false, "make the repairs that are safe, then check again")
	f.BoolVar(&o.dryRun, "dry-run", false, "with --repair: only say what would be done")
	f.StringVar(&o.severityFlag, "severity", "warning", "exit code 9 from this severity on: note, warning or error")
	cli.OfferValues(cmd, "severity", "note", "warning", "error")
	return a.WithAdmin(cmd, func(queues []string) (err error) {
		if bad := o.minSeverity.UnmarshalText([]byte(o.severityFlag)); bad != nil {
			err = usage.Errorf("%w", bad)
		}
		if o.dryRun && !o.repair {
			err = errors.Join(err, usage.Errorf("--dry-run: needs --repair"))
		}
		if o.repair && o.quick {
			err = errors.Join(err, usage.Errorf("--quick and --repair: give one, because a repair needs all checks"))
		}
		return err
	}, func(ctx context.Context, op *admin.Admin, queues []string) error {
		return runDoctor(ctx, a, op, o, queues)
	})
}

// doctorReport is the result as JSON. After a repair, Report is the second examination.
type doctorReport struct {
	doctor.Report
	Before  []doctor.Finding `json:"before,omitempty"`  // with --repair: findings of the first examination
	Repairs []doctor.Repair  `json:"repairs,omitempty"` // with --repair: repairs that were made, or would be made
}

func runDoctor(ctx context.Context, a *cli.App, op *admin.Admin, o doctorOptions, queues []string) error {
	progress := term.NewProgress(a.Err, "")
	defer progress.Clear()
	examine := func() (doctor.Report, error) {
		defer progress.Clear()
		return op.Doctor(ctx, doctor.Config{Queues: queues, Quick: o.quick, Release: a.Version, Progress: progress.Step})
	}
	report, err := examine()
	if err != nil {
		return err
	}
	result := doctorReport{Report: report}
	printReport(a.Text(), report)
	if o.repair {
		result.Repairs = report.Plan()
	}
	if len(result.Repairs) > 0 {
		result.Before = report.Findings
		fmt.Fprintln(a.Text(), "\nrepair:")
		for _, planned := range result.Repairs {
			fmt.Fprintf(a.Text(), "  will  %s  %s%s\n", planned.Code, planned.Plan, placeOf(planned))
		}
		if !o.dryRun {
			var repairErr error
			if result.Report, result.Repairs, repairErr = repair(ctx, a, report, examine, progress); repairErr != nil {
				_ = a.Print(result, func() {})
				return repairErr
			}
		}
	}
	if err := a.Print(result, func() {}); err != nil {
		return err
	}
	if n := result.CountAtLeast(o.minSeverity); n > 0 {
		return fmt.Errorf("%w: %s of severity %s or worse", exit.ErrUnwell, human.Counted(n, "finding"), o.minSeverity)
	}
	return nil
}

// repair repairs the findings, and examines again.
func repair(
	ctx context.Context, a *cli.App, report doctor.Report, examine func() (doctor.Report, error), progress *term.Progress,
) (doctor.Report, []doctor.Repair, error) {
	var repairs []doctor.Repair
	err := report.Mend(ctx, func(made doctor.Repair) {
		progress.Clear()
		repairs = append(repairs, made)
		if made.Error != "" {
			fmt.Fprintf(a.Text(), "  failed  %s  %s\n", made.Code, made.Error)
		} else {
			fmt.Fprintf(a.Text(), "  done  %s  %s\n", made.Code, made.Did)
		}
	})
	if err != nil && (ctx.Err() != nil || errors.Is(err, bridge.ErrUnavailable)) {
		return report, repairs, err
	}
	after, examineErr := examine()
	if examineErr != nil {
		return report, repairs, errors.Join(err, examineErr)
	}
	fmt.Fprintln(a.Text(), "\nafter the repair:")
	printReport(a.Text(), after)
	return after, repairs, err
}

// placeOf returns the key that a repair changes, or else its queue, behind a colon.
func placeOf(r doctor.Repair) string {
	if place := cmp.Or(r.Key, r.Queue); place != "" {
		return ": " + place
	}
	return ""
}

func printReport(w io.Writer, r doctor.Report) {
	for _, s := range r.Servers {
		if s.Product == "" {
			fmt.Fprintf(w, "%s\n", s.Address)
			continue
		}
		persistence := "no append-only file"
		if s.AOF {
			persistence = strings.TrimSpace("append-only file " + s.Fsync)
		}
		memory := "no maxmemory"
		if s.MaxMemory > 0 {
			memory = fmt.Sprintf("%d%% of memory used", 100*s.Used/s.MaxMemory)
		}
		fmt.Fprintf(w, "%s  %s %s, %s, %s, %s\n", s.Address, s.Product, s.Version, persistence, memory,
			human.Counted(s.Replicas, "replica"))
	}
	quickly := ""
	if r.Quick {
		quickly = ", quickly: settings, counts and samples"
	}
	fmt.Fprintf(w, "looked at %s, %s%s\n", human.Counted(r.Queues, "queue"), human.Counted(r.Partitions, "partition"),
		quickly)
	if len(r.Patience) > 0 {
		shortest := slices.MinFunc(r.Patience, byTriedFor)
		longest := slices.MaxFunc(r.Patience, byTriedFor)
		text := fmt.Sprintf("a message that always fails is a dead letter after about %s, %s", triedFor(shortest),
			human.Counted(shortest.MaxAttempts, "attempt"))
		if longest.TriedFor > shortest.TriedFor {
			text += fmt.Sprintf(" (%s), to %s, %s (%s)", shortest.Queue, triedFor(longest),
				human.Counted(longest.MaxAttempts, "attempt"), longest.Queue)
		}
		fmt.Fprintln(w, text)
	}
	for _, f := range r.Findings {
		printFinding(w, f)
	}
	if len(r.Findings) == 0 {
		fmt.Fprintln(w, "nothing is wrong")
	}
	if len(r.LeftOut) > 0 {
		fmt.Fprintln(w, "\nnot looked at:")
		for _, text := range r.LeftOut {
			fmt.Fprintf(w, "  %s\n", human.OneLine(text, 300))
		}
	}
}

// codeOldDead is the code of the finding about old dead letters. Its example is the oldest letter, and its count is of
// all dead letters, old or not.
const codeOldDead = "D522"

func printFinding(w io.Writer, f doctor.Finding) {
	where := ""
	if f.Queue != "" {
		where = "  " + f.Queue
	}
	if f.Group != "" {
		where += "  group " + human.OneLine(f.Group, 60)
	}
	fmt.Fprintf(w, "\n%-7s  %s  %s%s\n", f.Severity, f.Code, f.Name, where)
	fmt.Fprintf(w, "  found   %s\n", human.OneLine(f.Found, 400))
	for _, example := range f.Examples {
		fmt.Fprintf(w, "          %s\n", human.OneLine(example, 200))
	}
	more := f.Count - int64(len(f.Examples))
	if len(f.Examples) > 0 && more > 0 && f.Code != codeOldDead {
		fmt.Fprintf(w, "          and %s more\n", human.Thousands(more))
	}
	fmt.Fprintf(w, "  why     %s\n  do      %s\n", f.Why, human.OneLine(f.Do, 400))
	if f.Repair != "" {
		fmt.Fprintf(w, "  repair  --repair %s\n", f.Repair)
	}
}

func byTriedFor(a, b doctor.Patience) int { return cmp.Compare(a.TriedFor, b.TriedFor) }

// triedFor formats how long a message that always fails is tried.
func triedFor(p doctor.Patience) string {
	return human.Short(time.Duration(p.TriedFor) * time.Millisecond)
}
