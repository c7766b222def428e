package tools

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/lmstfy/migrate"
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

// Migrate returns the command migrate.
func Migrate(a *cli.App) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use: "migrate", Short: "Move the jobs of another program into queues",
		Long:    "Moves the jobs that another program keeps in its Redis into queues of duestream.",
		Example: "  duestream migrate lmstfy --from redis://old:6379 --dry-run",
	}, migrateLmstfy(a), migrateAsynq(a), migrateDelayqueue(a), migrateBullmq(a))
}

type migrateOptions struct {
	from               string
	namespaces, queues []string
	dedup              time.Duration
	remove, dryRun     bool
}

const migrateDedup = 7 * 24 * time.Hour

func migrateLmstfy(a *cli.App) *cobra.Command {
	o := migrateOptions{dedup: migrateDedup}
	cmd := &cobra.Command{
		Use:   "lmstfy",
		Short: "Move the jobs of an lmstfy server",
		Long: `Moves the jobs that an lmstfy server (1.0.15) keeps in its Redis: ready jobs, delayed
jobs, jobs in flight, and dead letters. A job in flight is delivered when its ttr is
over, with its remaining tries. Each job keeps its ID, its bytes, its attributes and its
ttl. Queue Q of namespace NS becomes the queue NS:Q, which duestream gateway serves under
lmstfy's paths.

lmstfy may keep running: the command makes passes until a pass finds nothing new. Move
the producers and consumers of lmstfy to the gateway first. While producers publish to
lmstfy, the command does not end. A job that lmstfy still delivers may be delivered by
duestream as well.

A job is moved once, so you may run the command again within a week (--dedup). Only
--remove deletes jobs from lmstfy: the jobs that this run or an earlier run has moved.
Run the command without --remove first, check the result, and then run it with --remove.`,
		Example: `  duestream migrate lmstfy --from redis://old:6379 --dry-run
  duestream migrate lmstfy --from redis://old:6379/2 --namespace shop
  duestream migrate lmstfy --from redis://old:6379/2 --namespace shop --remove`,
	}
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "",
		"URL of lmstfy's Redis, in the form of --redis; default $DUESTREAM_LMSTFY_REDIS_URL "+
			"(use it for a URL with a password, because process lists show flags)")
	f.StringArrayVar(&o.namespaces, "namespace", nil, "only this namespace; may be given again")
	f.StringArrayVar(&o.queues, "lmstfy-queue", nil, "only the queue of this name in lmstfy; may be given again")
	flags.DelayVar(f, &o.dedup, "dedup", "remember each job for this time, so that it is not moved again")
	f.BoolVar(&o.remove, "remove", false, "delete each job from lmstfy after it has been moved")
	f.BoolVar(&o.dryRun, "dry-run", false, "only read lmstfy's Redis, and count")
	cmd.MarkFlagsMutuallyExclusive("remove", "dry-run")
	a.JSONFlag(cmd)
	return a.WithRun(cmd, func([]string) error {
		var s settings.Migrate
		if err := settings.Fill(&s); err != nil {
			return err
		}
		if o.from = cmp.Or(o.from, s.LmstfyRedisURL); o.from == "" {
			return usage.Errorf("from: which Redis is lmstfy's? Give --from redis://host:6379, or set " +
				"DUESTREAM_LMSTFY_REDIS_URL")
		}
		if o.dedup <= 0 {
			return usage.Errorf("dedup %s: must be above 0", o.dedup)
		}
		return nil
	}, func(ctx context.Context, _ []string) error { return runMigrate(ctx, a, o) })
}

func runMigrate(ctx context.Context, a *cli.App, o migrateOptions) error {
	from, err := bridge.Dial(ctx, o.from, cli.FailFast)
	if err != nil {
		return fmt.Errorf("lmstfy's Redis: %w", err)
	}
	defer from.Close()
	cfg := migrate.Config{From: from.Client, Namespaces: o.namespaces, Queues: o.queues, Window: o.dedup, Remove: o.remove}
	if o.dryRun {
		return moveJobs(ctx, a, cfg)
	}
	return a.UseAdmin(ctx, func(op *admin.Admin) error {
		cfg.To = op
		return moveJobs(ctx, a, cfg)
	})
}

// migrateTally is the result as JSON: the counts of all jobs.
type migrateTally struct {
	Queues  []migrate.Tally `json:"queues"`
	Moved   int64           `json:"moved"`
	Known   int64           `json:"known"`
	Refused int64           `json:"refused"`
	Removed int64           `json:"removed"`
	DryRun  bool            `json:"dry_run"`
}

func moveJobs(ctx context.Context, a *cli.App, cfg migrate.Config) error {
	progress := term.NewProgress(a.Err, "jobs")
	cfg.Progress = func(jobs int64) { progress.Show(jobs, -1) }
	refused := 0
	cfg.Refused = func(namespace, queue, id string, err error) {
		if refused++; refused > linefile.MostRefusals {
			return
		}
		progress.Clear()
		a.Note("%s/%s %s: %v", namespace, queue, cmp.Or(id, "(all jobs)"), err)
		if refused == linefile.MostRefusals {
			a.Note("(jobs that are refused from here on are only counted)")
		}
	}
	queues, moveErr := migrate.Move(ctx, cfg)
	progress.Clear()
	t := migrateTally{Queues: queues, DryRun: cfg.To == nil}
	if t.Queues == nil {
		t.Queues = []migrate.Tally{}
	}
	for _, q := range queues {
		t.Moved, t.Known, t.Refused, t.Removed = t.Moved+q.Moved(), t.Known+q.Known, t.Refused+q.Refused, t.Removed+q.Removed
	}
	if err := a.Print(t, func() { printMoved(a, t) }); err != nil {
		return err
	}
	switch {
	case moveErr != nil:
		a.Note("stopped: run the command again to continue (no job is moved twice)")
		return moveErr
	case t.Refused > 0:
		anyDone := t.Moved+t.Known > 0
		return fmt.Errorf("%w: %s refused, see above; they stay in lmstfy", exit.Refused(anyDone),
			human.Counted(int(t.Refused), "job"))
	}
	return nil
}

func printMoved(a *cli.App, t migrateTally) {
	for _, q := range t.Queues {
		fmt.Fprintf(a.Out, "%s: ready %s, delayed %s, in flight %s, dead %s", cmp.Or(q.Queue, q.Namespace+"/"+q.Name),
			human.Thousands(q.Ready), human.Thousands(q.Delayed), human.Thousands(q.InFlight), human.Thousands(q.Dead))
		if q.Stray > 0 {
			fmt.Fprintf(a.Out, ", lost by lmstfy %s", human.Thousands(q.Stray))
		}
		fmt.Fprintln(a.Out)
	}
	fmt.Fprintf(a.Out, "%s %s, moved before %s, refused %s, removed from lmstfy %s\n", output.Done("moved", t.DryRun),
		human.Thousands(t.Moved), human.Thousands(t.Known), human.Thousands(t.Refused), human.Thousands(t.Removed))
}
