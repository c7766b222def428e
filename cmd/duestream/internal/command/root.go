package command

import (
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/deadletters"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/functions"
	"github.com/duestream/duestream/cmd/duestream/internal/looking"
	"github.com/duestream/duestream/cmd/duestream/internal/messages"
	"github.com/duestream/duestream/cmd/duestream/internal/queues"
	"github.com/duestream/duestream/cmd/duestream/internal/recurrences"
	"github.com/duestream/duestream/cmd/duestream/internal/servers"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/tools"
	"github.com/duestream/duestream/cmd/duestream/internal/workers"
)

// Root returns the root command with all commands below it.
func Root(a *cli.App) *cobra.Command {
	root := &cobra.Command{
		Use:   "duestream",
		Short: "Delayed messages, at least once, with nothing but Redis",
		Long: `duestream delivers messages at a chosen time, at least once, with nothing but Redis
or Valkey. A bridge (duestream serve) moves each message into a Redis Stream when it
is due; consumer groups in any language read it there.

Try it without installing anything:   duestream dev`,
		Example: `  duestream dev
  duestream serve --redis redis://127.0.0.1:6379
  duestream schedule emails --in 15m --id order-42 'hello'
  duestream work emails --group mailer -- ./send-mail
  duestream stats --watch`,
		Version:       a.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          cli.Help,

		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return flags.CheckEmpty(cmd) },
	}
	root.SetHelpCommand(helpCommand())
	root.SetUsageTemplate(root.UsageTemplate() + "{{if not .HasParent}}" + exit.Help + "{{end}}")
	root.SetVersionTemplate("duestream {{.Version}}\n")
	flags := root.PersistentFlags()
	flags.StringVar(&a.RedisURL, "redis", "", "URL of Redis; default $DUESTREAM_REDIS_URL, else "+settings.DefaultRedisURL)
	flags.StringVar(&a.Prefix, "prefix", "", "beginning of all keys; default $DUESTREAM_PREFIX, else duestream")
	cli.ColorFlag(a, root)
	root.AddCommand(
		servers.Serve(a), servers.Dev(a), servers.Health(a), servers.Gateway(a), servers.Token(a),
		messages.Schedule(a), messages.Cancel(a), messages.Reschedule(a), messages.Bulk(a),
		messages.Act(a), messages.Result(a), messages.Wait(a),
		recurrences.Recur(a),
		workers.Work(a), workers.Push(a),
		looking.Show(a), looking.Peek(a), looking.Pending(a), looking.Consumers(a),
		looking.Find(a), looking.Search(a), looking.Story(a), looking.Stats(a), looking.Forecast(a), looking.Top(a),
		looking.Doctor(a),
		deadletters.Dead(a),
		queues.Queue(a), queues.Pause(a), queues.Resume(a), queues.Export(a), queues.Import(a),
		functions.Command(a),
		tools.Bench(a), tools.Conformance(a), tools.Migrate(a), tools.Man(a), tools.Version(a),
	)
	cli.Complete(a, root)
	return root
}
