package tools

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/linefile"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// migrateDedup is how long a moved job is remembered by default.
const migrateDedup = 7 * 24 * time.Hour

// jobSource is a program whose jobs package bridge/migrate moves.
type jobSource struct {
	program  string // "asynq"
	job      string // the program's word for a job: "task"
	variable string // the environment variable with the URL of its Redis
	url      func(settings.MigrateFrom) string
	open     func(ctx context.Context, c rueidis.Client) (migrate.Source, error)

	keepsNames bool // no --rename: the names of the queues have a meaning in duestream, too
	// report returns the result in a form of the program's own: as JSON, and as a function that prints it. nil = the
	// common form.
	report func(a *cli.App, t jobTally) (asJSON any, printed func())
}

func (s jobSource) jobs() string { return s.job + "s" }

// jobOptions are the flags that the commands of all programs share.
type jobOptions struct {
	from           string
	rename         map[string]string
	dedup          time.Duration
	remove, dryRun bool
}

// addTo adds the flags to a command, and makes the command run.
func (s jobSource) addTo(a *cli.App, cmd *cobra.Command) *cobra.Command {
	o := jobOptions{dedup: migrateDedup}
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", fmt.Sprintf("URL of the Redis of %s, in the form of --redis; default $%s "+
		"(use it for a URL with a password, because process lists show flags)", s.program, s.variable))
	if !s.keepsNames {
		f.StringToStringVar(&o.rename, "rename", nil,
			"OLD=NEW: put the "+s.jobs()+" of queue OLD into queue NEW; may be given again")
	}
	flags.DelayVar(f, &o.dedup, "dedup", "remember each "+s.job+" for this time, so that it is not moved again")
	f.BoolVar(&o.remove, "remove", false, "delete each "+s.job+" from "+s.program+" after it has been moved")
	f.BoolVar(&o.dryRun, "dry-run", false, "only read the Redis of "+s.program+", and count")
	cmd.MarkFlagsMutuallyExclusive("remove", "dry-run")
	a.JSONFlag(cmd)
	return a.WithRun(cmd, func([]string) error {
		var fromEnvironment settings.MigrateFrom
		if err := settings.Fill(&fromEnvironment); err != nil {
			return err
		}
		if o.from = cmp.Or(o.from, s.url(fromEnvironment)); o.from == "" {
			return usage.Errorf("from: which Redis is that of %s? Give --from redis://host:6379, or set %s",
				s.program, s.variable)
		}
		if o.dedup <= 0 {
			return usage.Errorf("dedup %s: must be above 0", o.dedup)
		}
		for old, name := range o.rename {
			if err := admin.CheckQueue(name); err != nil {
				return usage.Errorf("rename %s: %w", old, err)
			}
		}
		return nil
	}, func(ctx context.Context, _ []string) error { return s.run(ctx, a, o) })
}

func (s jobSource) run(ctx context.Context, a *cli.App, o jobOptions) error {
	redis, err := bridge.Dial(ctx, o.from, cli.FailFast)
	if err != nil {
		return fmt.Errorf("the Redis of %s: %w", s.program, err)
	}
	defer redis.Close()
	from, err := s.open(ctx, redis.Client)
	if err != nil {
		return err
	}
	cfg := migrate.Config{From: from, Rename: o.rename, Window: o.dedup, Remove: o.remove}
	if o.dryRun {
		return s.move(ctx, a, cfg)
	}
	return a.UseAdmin(ctx, func(op *admin.Admin) error {
		cfg.To = op
		return s.move(ctx, a, cfg)
	})
}

// jobTally is the result as JSON: the counts of all jobs.
type jobTally struct {
	Queues  []migrate.Tally `json:"queues"`
	Moved   int64           `json:"moved"`
	Stayed  int64           `json:"stayed"`
	Known   int64           `json:"known"`
	Refused int64           `json:"refused"`
	Removed int64           `json:"removed"`
	DryRun  bool            `json:"dry_run"`
}

func (s jobSource) move(ctx context.Context, a *cli.App, cfg migrate.Config) error {
	progress := term.NewProgress(a.Err, s.jobs())
	cfg.Progress = func(jobs int64) { progress.Show(jobs, -1) }
	refused := 0
	cfg.Refused = func(queue, id string, err error) {
		if refused++; refused > linefile.MostRefusals {
			return
		}
		progress.Clear()
		a.Note("%s %s: %v", human.OneLine(queue, 256), human.OneLine(cmp.Or(id, "(all "+s.jobs()+")"), 256), err)
		if refused == linefile.MostRefusals {
			a.Note("(%s that are refused from here on are only counted)", s.jobs())
		}
	}
	queues, moveErr := migrate.Move(ctx, cfg)
	progress.Clear()
	t := jobTally{Queues: queues, DryRun: cfg.To == nil}
	if t.Queues == nil {
		t.Queues = []migrate.Tally{}
	}
	for _, q := range queues {
		t.Moved, t.Stayed, t.Known = t.Moved+q.Moved, t.Stayed+q.Stayed, t.Known+q.Known
		t.Refused, t.Removed = t.Refused+q.Refused, t.Removed+q.Removed
	}
	var asJSON any = t
	printed := func() { s.print(a, t) }
	if s.report != nil {
		asJSON, printed = s.report(a, t)
	}
	if err := a.Print(asJSON, printed); err != nil {
		return err
	}
	switch {
	case moveErr != nil:
		a.Note("stopped: run the command again to continue (no %s is moved twice)", s.job)
		return moveErr
	case t.Refused > 0:
		return fmt.Errorf("%w: %s refused, see above; they stay in %s", exit.Refused(t.Moved+t.Known > 0),
			human.Counted(t.Refused, s.job), s.program)
	}
	return nil
}

func (s jobSource) print(a *cli.App, t jobTally) {
	for _, q := range t.Queues {
		name := cmp.Or(q.Queue, human.OneLine(q.Source, 256))
		fmt.Fprintf(a.Out, "%s: %s\n", name, cmp.Or(counts(q.States), "nothing new"))
		if q.Stayed > 0 {
			fmt.Fprintf(a.Out, "  stay in %s: %s\n", s.program, counts(q.Stay))
		}
		if len(q.Unsaid) > 0 {
			fmt.Fprintf(a.Out, "  settings that duestream does not have: %s\n", counts(q.Unsaid))
		}
	}
	fmt.Fprintf(a.Out, "%s %s, stay %s, moved before %s, refused %s, removed from %s %s\n",
		output.Done("moved", t.DryRun), human.Thousands(t.Moved), human.Thousands(t.Stayed), human.Thousands(t.Known),
		human.Thousands(t.Refused), s.program, human.Thousands(t.Removed))
}

// counts writes counted names, sorted by name.
func counts(all map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		parts = append(parts, name+" "+human.Thousands(all[name]))
	}
	return strings.Join(parts, ", ")
}
