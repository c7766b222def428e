package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// app is one run of the command: its streams, and the flags that all commands share.
type app struct {
	printer
	in io.Reader

	redisURL, prefix string
	durability       flags.Durability
	oldBridges       flags.Switch                // value of the flag --allow-old-bridges
	allowOldBridges  bool                        // the flag, else the environment
	passwordsFrom    []string                    // sources of the passwords that do not stand in the URL
	passwords        func(*rueidis.ClientOption) // sets the passwords that do not stand in the URL

	version string // of this program
	started bool   // arguments and flags were accepted, and the command has begun

	// serverClock returns the clock of the server that holds a queue, and for "" the clock of any server. It is nil
	// until there is a connection.
	redisTime func(queue string) (time.Time, error)
}

// run runs the command and returns its exit code. Cancelling ctx is a clean stop.
func run(ctx context.Context, version string, args []string, in io.Reader, out, errOut io.Writer) int {
	a := &app{in: in, version: version}
	printed, said := a.outlet(out), a.outlet(errOut)
	a.out, a.err = printed, said
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.InitDefaultCompletionCmd() // prints to the writers that are set by now
	if shells, _, err := root.Find([]string{"completion"}); err == nil {
		shells.RunE = help // cobra's own takes any word for a shell
	}
	err := root.ExecuteContext(ctx)
	lost := printed.End()
	if err != nil && !a.started {
		a.json = a.json || wantsJSON(args)
		if lost == nil { // a lost output reaches us as an error of cobra, too
			text := human.MiddleCut(err.Error())
			if word, above := unknownCommand(root, args); word != "" {
				text = fmt.Sprintf("unknown command %q for %q", human.OneLine(word, 100), above.CommandPath())
			}
			err = usage.Errorf("%s", plainFlagError(text))
		}
	}
	if lost != nil && !errors.Is(err, lost) {
		err = errors.Join(err, &outputLost{lost})
	}
	a.report(err)
	_ = said.End()
	return exitCode(err)
}

// wantsJSON reports whether --json is among the arguments, for errors that come before the flags are read.
func wantsJSON(args []string) bool {
	for _, arg := range args {
		if arg == "--json" || arg == "--" {
			return arg == "--json"
		}
	}
	return false
}

// root returns the root command with all commands below it.
func (a *app) root() *cobra.Command {
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
		Version:       a.version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          help,

		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return flags.CheckEmpty(cmd) },
	}
	root.SetHelpCommand(helpCommand())
	root.SetUsageTemplate(root.UsageTemplate() + "{{if not .HasParent}}" + exitCodes + "{{end}}")
	root.SetVersionTemplate("duestream {{.Version}}\n")
	flags := root.PersistentFlags()
	flags.StringVar(&a.redisURL, "redis", "", "URL of Redis; default $DUESTREAM_REDIS_URL, else "+settings.DefaultRedisURL)
	flags.StringVar(&a.prefix, "prefix", "", "beginning of all keys; default $DUESTREAM_PREFIX, else duestream")
	a.colorFlag(root)
	root.AddCommand(
		a.serve(), a.dev(), a.health(), a.gateway(), a.token(),
		a.schedule(), a.cancel(), a.reschedule(), a.bulk(),
		a.recur(),
		a.work(), a.push(),
		a.show(), a.peek(), a.pending(), a.consumers(),
		a.find(), a.story(), a.stats(), a.top(), a.doctor(),
		a.dead(),
		a.queue(), a.pause(), a.resume(), a.export(), a.importCommand(),
		a.functions(),
		a.bench(), a.conformance(), a.migrate(), a.man(), a.versionCommand(),
	)
	a.complete(root)
	return root
}

// helpCommand replaces cobra's help command. Cobra's succeeds for a command that does not exist; this one fails.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [command]", Short: "Help about any command", Long: "Prints the help of a command, as --help does.",
		Example: "  duestream help queue set",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			if target, _, err := cmd.Root().Find(args); err == nil {
				for _, sub := range target.Commands() {
					if sub.IsAvailableCommand() {
						names = append(names, sub.Name()+"\t"+sub.Short)
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			target, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return fmt.Errorf("there is no command %q", strings.Join(args, " "))
			}
			target.InitDefaultHelpFlag()
			return target.Help()
		},
	}
}

// jsonFlag adds --json to a command.
func (a *app) jsonFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.json, "json", false, "print JSON, for programs")
}

// resolve fills in the URL and the prefix: from the flag, else the environment, else the default.
func (a *app) resolve() error {
	c := settings.Connection{RedisURL: a.redisURL, Prefix: a.prefix}
	if err := settings.Fill(&c); err != nil {
		return err
	}
	a.redisURL, a.prefix, a.allowOldBridges = c.RedisURL, c.Prefix, a.oldBridges.Or(c.AllowOldBridges)
	var err error
	if a.passwords, err = c.Passwords(a.tookPassword); err != nil {
		return err
	}
	return admin.CheckPrefix(a.prefix)
}

// tookPassword notes the source of a password, each source once.
func (a *app) tookPassword(from string) {
	if !slices.Contains(a.passwordsFrom, from) {
		a.passwordsFrom = append(a.passwordsFrom, from)
	}
}

// connect dials Redis. The caller closes it.
func (a *app) connect(ctx context.Context) (*bridge.Redis, error) {
	if err := a.resolve(); err != nil {
		return nil, err
	}
	type dialed struct {
		r   *bridge.Redis
		err error
	}
	answer := make(chan dialed, 1)
	go func() { // so that an interrupt does not wait for a silent server
		r, err := bridge.Dial(ctx, a.redisURL, a.passwords, failFast)
		answer <- dialed{r, err}
	}()
	select {
	case d := <-answer:
		return d.r, d.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// failFast makes a read return the error of a broken connection. The client library would retry for ever.
func failFast(opt *rueidis.ClientOption) { opt.DisableRetry = true }

// hostOf returns the URL without user and password.
func hostOf(url string) string { return strings.Replace(bridge.Redact(url), "…@", "", 1) }

// oldBridgesFlag adds --allow-old-bridges to a command that writes something older bridges do not serve.
func (a *app) oldBridgesFlag(cmd *cobra.Command) {
	flags.SwitchVar(cmd.Flags(), &a.oldBridges, "allow-old-bridges",
		"go on although a bridge is alive that may not serve this; default $DUESTREAM_ALLOW_OLD_BRIDGES")
}

// durabilityFlag adds --durability to a command that writes.
func (a *app) durabilityFlag(cmd *cobra.Command) {
	cmd.Flags().Var(&a.durability, "durability", "wait until it is on disk (fsynced; Redis 7.2), on n replicas (replicated=n), or both (fsynced,replicated=n)")
	offerValues(cmd, "durability", "accepted", "fsynced", "replicated=1")
}
