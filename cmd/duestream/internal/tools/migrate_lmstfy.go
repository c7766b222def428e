package tools

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/bridge/migrate/lmstfy"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
)

func migrateLmstfy(a *cli.App) *cobra.Command {
	var o lmstfy.Options
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
Run the command without --remove first, check the result, and then run it with --remove.

The Redis of lmstfy must be a single server, not a cluster.`,
		Example: `  duestream migrate lmstfy --from redis://old:6379 --dry-run
  duestream migrate lmstfy --from redis://old:6379/2 --namespace shop
  duestream migrate lmstfy --from redis://old:6379/2 --namespace shop --remove`,
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.Namespaces, "namespace", nil, "only this namespace; may be given again")
	f.StringArrayVar(&o.Queues, "lmstfy-queue", nil, "only the queue of this name in lmstfy; may be given again")
	return jobSource{
		program: "lmstfy", job: "job", variable: "DUESTREAM_LMSTFY_REDIS_URL",
		url: func(m settings.MigrateFrom) string { return m.LmstfyRedisURL },
		open: func(ctx context.Context, c rueidis.Client) (migrate.Source, error) {
			return lmstfy.New(ctx, c, o)
		},
		keepsNames: true, report: reportLmstfy,
	}.addTo(a, cmd)
}

// lmstfyQueue counts what happened to the jobs of a queue of lmstfy.
type lmstfyQueue struct {
	Queue     string `json:"queue"` // name of the queue in duestream; "" = the name is not valid there
	Namespace string `json:"lmstfy_namespace"`
	Name      string `json:"lmstfy_queue"`

	// Moved jobs, by their state in lmstfy.
	Ready    int64 `json:"ready"`
	Delayed  int64 `json:"delayed"`
	InFlight int64 `json:"in_flight"`
	Dead     int64 `json:"dead"`
	Stray    int64 `json:"stray"`

	Known   int64 `json:"known"`
	Refused int64 `json:"refused"`
	Removed int64 `json:"removed"`
}

// lmstfyTally is the result as JSON: the counts of all jobs.
type lmstfyTally struct {
	Queues  []lmstfyQueue `json:"queues"`
	Moved   int64         `json:"moved"`
	Known   int64         `json:"known"`
	Refused int64         `json:"refused"`
	Removed int64         `json:"removed"`
	DryRun  bool          `json:"dry_run"`
}

// reportLmstfy reports by the states that every queue of lmstfy has, also those without jobs.
func reportLmstfy(a *cli.App, all jobTally) (asJSON any, printed func()) {
	t := lmstfyTally{Queues: []lmstfyQueue{}, Moved: all.Moved, Known: all.Known, Refused: all.Refused,
		Removed: all.Removed, DryRun: all.DryRun}
	for _, q := range all.Queues {
		namespace, name := lmstfy.SplitQueue(q.Source)
		t.Queues = append(t.Queues, lmstfyQueue{Queue: q.Queue, Namespace: namespace, Name: name,
			Ready: q.States[lmstfy.Ready], Delayed: q.States[lmstfy.Delayed], InFlight: q.States[lmstfy.InFlight],
			Dead: q.States[lmstfy.Dead], Stray: q.States[lmstfy.Stray],
			Known: q.Known, Refused: q.Refused, Removed: q.Removed})
	}
	slices.SortFunc(t.Queues, func(a, b lmstfyQueue) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return t, func() { printLmstfy(a, t) }
}

func printLmstfy(a *cli.App, t lmstfyTally) {
	for _, q := range t.Queues {
		fmt.Fprintf(a.Out, "%s: ready %s, delayed %s, in flight %s, dead %s",
			cmp.Or(q.Queue, human.OneLine(q.Namespace+"/"+q.Name, 256)),
			human.Thousands(q.Ready), human.Thousands(q.Delayed), human.Thousands(q.InFlight), human.Thousands(q.Dead))
		if q.Stray > 0 {
			fmt.Fprintf(a.Out, ", lost by lmstfy %s", human.Thousands(q.Stray))
		}
		fmt.Fprintln(a.Out)
	}
	fmt.Fprintf(a.Out, "%s %s, moved before %s, refused %s, removed from lmstfy %s\n", output.Done("moved", t.DryRun),
		human.Thousands(t.Moved), human.Thousands(t.Known), human.Thousands(t.Refused), human.Thousands(t.Removed))
}
