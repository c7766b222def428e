package tools

import (
	"context"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/bridge/migrate/delayqueue"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
)

func migrateDelayqueue(a *cli.App) *cobra.Command {
	var queues []string
	cmd := &cobra.Command{
		Use:   "delayqueue",
		Short: "Move the messages of the Go library delayqueue",
		Long: `Moves the messages that github.com/hdt3213/delayqueue (v1.0.6) keeps in its Redis:
pending, ready and unacknowledged messages, and those that wait for a retry. A message
keeps its ID, its payload, its due time, its remaining retries and its time to live. An
unacknowledged message is delivered when delayqueue would deliver it again. Queue Q
becomes the queue Q (--rename gives another name).

Messages whose retries are used up stay: delayqueue deletes them.

The consumers may keep running: the command makes passes until a pass finds nothing new.
While producers send messages, the command does not end. A message that a consumer still
handles may be delivered by duestream as well. So stop the consumers first.

A message is moved once, so you may run the command again within a week (--dedup). Only
--remove deletes messages from delayqueue: those that this run or an earlier run has
moved. Run the command without --remove first, check the result, and then run it with
--remove.

The Redis of delayqueue must be a single server, not a cluster.`,
		Example: `  duestream migrate delayqueue --from redis://old:6379 --dry-run
  duestream migrate delayqueue --from redis://old:6379 --delayqueue-queue orders --remove`,
	}
	cmd.Flags().StringArrayVar(&queues, "delayqueue-queue", nil,
		"only the queue of this name in delayqueue; may be given again")
	return jobSource{
		program: "delayqueue", job: "message", variable: "DUESTREAM_DELAYQUEUE_REDIS_URL",
		url: func(m settings.MigrateFrom) string { return m.DelayqueueRedisURL },
		open: func(ctx context.Context, c rueidis.Client) (migrate.Source, error) {
			return delayqueue.New(ctx, c, queues...)
		},
	}.addTo(a, cmd)
}
