package tools

import (
	"context"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/bridge/migrate/asynq"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
)

func migrateAsynq(a *cli.App) *cobra.Command {
	var o asynq.Options
	cmd := &cobra.Command{
		Use:   "asynq",
		Short: "Move the tasks of asynq",
		Long: `Moves the tasks that asynq (0.23 to 0.26) keeps in its Redis: scheduled tasks, pending
tasks, tasks that wait for a retry, and active tasks. A task becomes a message with the
ID, the payload and the headers of the task. The type of the task becomes the message's
kind (header "kind"). A retry keeps the number of its attempt. An active task is delivered
when its lease ends. A timeout becomes the time limit of the handler, and a retention the
time for which the result is kept. Queue Q becomes the queue Q (--rename gives another
name).

Archived tasks stay in asynq, unless --archived-to names the group whose dead letters
they become. Tasks with an aggregation group stay unless you give --aggregating.
Completed tasks stay. The report counts what stays. It also counts settings of tasks that
messages do not have, such as the deadline.

asynq may keep running: the command makes passes until a pass finds nothing new. While
producers enqueue tasks, the command does not end. A task that asynq still processes may
be delivered by duestream as well. So stop the servers of asynq first.

A task is moved once, so you may run the command again within a week (--dedup). Only
--remove deletes tasks from asynq: those that this run or an earlier run has moved. Run
the command without --remove first, check the result, and then run it with --remove.

The Redis of asynq must be a single server, not a cluster.`,
		Example: `  duestream migrate asynq --from redis://old:6379 --dry-run
  duestream migrate asynq --from redis://old:6379 --asynq-queue critical --rename critical=mail
  duestream migrate asynq --from redis://old:6379 --archived-to mailer --remove`,
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.Queues, "asynq-queue", nil, "only the queue of this name in asynq; may be given again")
	f.StringVar(&o.ArchivedTo, "archived-to", "",
		"move archived tasks: they become dead letters of this group, which is created")
	f.BoolVar(&o.Aggregating, "aggregating", false,
		"move tasks with an aggregation group, each as a message of its own")
	return jobSource{
		program: "asynq", job: "task", variable: "DUESTREAM_ASYNQ_REDIS_URL",
		url: func(m settings.MigrateFrom) string { return m.AsynqRedisURL },
		open: func(ctx context.Context, c rueidis.Client) (migrate.Source, error) {
			return asynq.New(ctx, c, o)
		},
	}.addTo(a, cmd)
}
