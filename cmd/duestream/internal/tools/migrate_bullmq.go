package tools

import (
	"context"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/bridge/migrate/bullmq"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
)

func migrateBullmq(a *cli.App) *cobra.Command {
	var o bullmq.Options
	cmd := &cobra.Command{
		Use:   "bullmq",
		Short: "Move the jobs of BullMQ",
		Long: `Moves the jobs that BullMQ (4 to 6) keeps in its Redis: waiting, prioritized and paused
jobs, delayed jobs, jobs that wait for a retry, and active jobs. A job becomes a message
with the data of the job as payload. The name of the job becomes the message's kind
(header "kind"). The attempts, the backoff and the number of the attempt are kept. A
waiting job is due now, a delayed job at its time, and an active job when its lock ends.
Job 17 of queue Q becomes the message bull:Q:17@TIMESTAMP in the queue Q (--rename gives
the queue another name).

Failed jobs stay in BullMQ, unless --failed-to names the group whose dead letters they
become. Job schedulers and their next jobs stay unless you give --schedulers: then a
scheduler becomes a recurrence. A scheduler with a pattern and no time zone needs --zone.
Completed jobs stay. The jobs of a flow that is not finished are refused. The report
counts what stays, and settings of jobs that messages do not have, such as the priority.

BullMQ may keep running: the command makes passes until a pass finds nothing new. While
producers add jobs, the command does not end. A job that BullMQ still processes may be
delivered by duestream as well. So stop the workers of BullMQ first.

A job is moved once, so you may run the command again within a week (--dedup). Only
--remove deletes jobs from BullMQ: those that this run or an earlier run has moved. Run
the command without --remove first, check the result, and then run it with --remove.

The Redis of BullMQ must be a single server, not a cluster.`,
		Example: `  duestream migrate bullmq --from redis://old:6379 --dry-run
  duestream migrate bullmq --from redis://old:6379 --bullmq-queue mails --rename mails=mail
  duestream migrate bullmq --from redis://old:6379 --failed-to mailer --schedulers --remove`,
	}
	f := cmd.Flags()
	f.StringVar(&o.Prefix, "bullmq-prefix", bullmq.DefaultPrefix, "prefix of the keys of BullMQ: its option prefix")
	f.StringArrayVar(&o.Queues, "bullmq-queue", nil, "only the queue of this name in BullMQ; may be given again")
	f.StringVar(&o.FailedTo, "failed-to", "",
		"move failed jobs: they become dead letters of this group, which is created")
	f.BoolVar(&o.Schedulers, "schedulers", false, "move job schedulers: they become recurrences")
	f.StringVar(&o.Zone, "zone", "", "time zone of job schedulers without one, such as Europe/Paris")
	return jobSource{
		program: "bullmq", job: "job", variable: "DUESTREAM_BULLMQ_REDIS_URL",
		url: func(m settings.MigrateFrom) string { return m.BullmqRedisURL },
		open: func(ctx context.Context, c rueidis.Client) (migrate.Source, error) {
			return bullmq.New(ctx, c, o)
		},
	}.addTo(a, cmd)
}
