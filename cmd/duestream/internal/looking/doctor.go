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
	quick, repair, dry bool
	severity           string
	least              doctor.Severity
}

// Doctor returns the command doctor.
func Doctor(a *cli.App) *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor [<queue>...]",
		Short: "Check the server's settings, and that all queues are in order",
		Long: `Looks at the settings of the server, and at everything that duestream keeps there, of
some queues or of all: what is wrong, why it matters, and what to do. docs/operations/doctor.md
lists all codes. What looks wrong is looked at again some seconds later, so that nothing
is found of a system that only works. Looking writes nothing, and asks in small steps.

With --repair, does what can neither lose a message nor deliver one that was handled: it
says what it will do, does it, and looks again. --dry-run says only what it would do.

Exit code 9 when something is wrong, or still wrong, of the --severity given.`,
		Example: `  duestream doctor
  duestream doctor emails --quick
  duestream doctor --severity error --json
  duestream doctor --repair --dry-run`,
	}
	f := cmd.Flags()
	f.BoolVar(&o.quick, "quick", false, "look at settings, counts and samples only")
	f.BoolVar(&o.repair, "repair", false, "repair what can be repaired safely, then look again")
	f.BoolVar(&o.dry, "dry-run", false, "with --repair: say what it would do")
	f.StringVar(&o.severity, "severity", "warning", "exit code 9 from this severity on: note, warning or error")
	cli.OfferValues(cmd, "severity", "note", "warning", "error")
	return a.WithAdmin(cmd, func(queues []string) (err error) {
		if failed := o.least.UnmarshalText([]byte(o.severity)); failed != nil {
			err = usage.Errorf("%w", failed)
		}
		if o.dry && !o.repair {
			err = errors.Join(err, usage.Errorf("--dry-run: belongs to --repair"))
		}
		if o.repair && o.quick {
			err = errors.Join(err, usage.Errorf("--quick and --repair: a repair looks at everything"))
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
	whole := doctorReport{Report: report}
	printDoctor(a.Text(), report)
	if whole.Repairs = report.Plan(); o.repair && len(whole.Repairs) > 0 {
		whole.Before = report.Findings
		fmt.Fprintln(a.Text(), "\nrepair:")
		for _, one := range whole.Repairs {
			fmt.Fprintf(a.Text(), "  will  %s  %s%s\n", one.Code, one.Plan, at(one.Queue, one.Key))
		}
		if !o.dry {
			var failed error
			if whole.Report, whole.Repairs, failed = repair(ctx, a, report, examine, progress); failed != nil {
				_ = a.Print(whole, func() {})
				return failed
			}
		}
	}
	if !o.repair {
		whole.Repairs = nil
	}
	if err := a.Print(whole, func() {}); err != nil {
		return err
	}
	if n := whole.CountAtLeast(o.least); n > 0 {
		return fmt.Errorf("%w: %s of severity %s or worse", exit.ErrUnwell, human.Counted(n, "finding"), o.least)
	}
	return nil
}

// repair repairs the findings, and examines again.
func repair(
	ctx context.Context, a *cli.App, report doctor.Report, examine func() (doctor.Report, error), progress *term.Progress,
) (doctor.Report, []doctor.Repair, error) {
	var repairs []doctor.Repair
	err := report.Mend(ctx, func(one doctor.Repair) {
		progress.Clear()
		repairs = append(repairs, one)
		if one.Error != "" {
			fmt.Fprintf(a.Text(), "  failed  %s  %s\n", one.Code, one.Error)
		} else {
			fmt.Fprintf(a.Text(), "  done  %s  %s\n", one.Code, one.Did)
		}
	})
	if err != nil && (ctx.Err() != nil || errors.Is(err, bridge.ErrUnavailable)) {
		return report, repairs, err
	}
	after, failed := examine()
	if failed != nil {
		return report, repairs, errors.Join(err, failed)
	}
	fmt.Fprintln(a.Text(), "\nafter the repair:")
	printDoctor(a.Text(), after)
	return after, repairs, err
}

func at(queue, key string) string {
	switch {
	case key != "":
		return ": " + key
	case queue != "":
		return ": " + queue
	}
	return ""
}

func printDoctor(w io.Writer, r doctor.Report) {
	for _, s := range r.Servers {
		persistence := "no append-only file"
		if s.AOF {
			persistence = strings.TrimSpace("append-only file " + s.Fsync)
		}
		if s.Product == "" {
			fmt.Fprintf(w, "%s\n", s.Address)
			continue
		}
		memory := "no maxmemory"
		if s.MaxMemory > 0 {
			memory = fmt.Sprintf("%d%% of memory used", 100*s.Used/s.MaxMemory)
		}
		fmt.Fprintf(w, "%s  %s %s, %s, %s, %s\n", s.Address, s.Product, s.Version, persistence, memory,
			human.Counted(s.Replicas, "replica"))
	}
	how := ""
	if r.Quick {
		how = ", quickly: settings, counts and samples"
	}
	fmt.Fprintf(w, "looked at %s, %s%s\n", human.Counted(r.Queues, "queue"), human.Counted(r.Partitions, "partition"), how)
	if len(r.Patience) > 0 {
		few := slices.MinFunc(r.Patience, byPatience)
		many := slices.MaxFunc(r.Patience, byPatience)
		text := fmt.Sprintf("a message that always fails is a dead letter after about %s, %s", tried(few),
			human.Counted(few.MaxAttempts, "attempt"))
		if many.TriedFor > few.TriedFor {
			text += fmt.Sprintf(" (%s), to %s, %s (%s)", few.Queue, tried(many),
				human.Counted(many.MaxAttempts, "attempt"), many.Queue)
		}
		fmt.Fprintln(w, text)
	}
	for _, f := range r.Findings {
		where := ""
		if f.Queue != "" {
			where = "  " + f.Queue
		}
		if f.Group != "" {
			where += "  group " + human.OneLine(f.Group, 60)
		}
		fmt.Fprintf(w, "\n%-7s  %s  %s%s\n", f.Severity, f.Code, f.Name, where)
		fmt.Fprintf(w, "  found   %s\n", human.OneLine(f.Found, 400))
		for _, one := range f.Examples {
			fmt.Fprintf(w, "          %s\n", human.OneLine(one, 200))
		}
		if rest := f.Count - int64(len(f.Examples)); len(f.Examples) > 0 && rest > 0 && f.Code != "D522" {
			fmt.Fprintf(w, "          and %s more\n", human.Thousands(rest))
		}
		fmt.Fprintf(w, "  why     %s\n  do      %s\n", f.Why, human.OneLine(f.Do, 400))
		if f.Repair != "" {
			fmt.Fprintf(w, "  repair  --repair %s\n", f.Repair)
		}
	}
	if len(r.Findings) == 0 {
		fmt.Fprintln(w, "nothing is wrong")
	}
	if len(r.LeftOut) > 0 {
		fmt.Fprintln(w, "\nnot looked at:")
		for _, one := range r.LeftOut {
			fmt.Fprintf(w, "  %s\n", human.OneLine(one, 300))
		}
	}
}

func byPatience(a, b doctor.Patience) int { return cmp.Compare(a.TriedFor, b.TriedFor) }

func tried(p doctor.Patience) string {
	return human.Short(time.Duration(p.TriedFor) * time.Millisecond)
}
