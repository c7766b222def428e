// Package workers has the commands that take messages from queues: work and push.
package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/process"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// Exit codes of a worker's command, from sysexits.h.
const (
	commandDeadLetter = 65 // EX_DATAERR: the message can never be processed
	commandRetry      = 75 // EX_TEMPFAIL: try again; every other code except 0 and 65 means this, too
)

type workOptions struct {
	bridge.WorkerConfig
	path      string // path of the command
	strict    bool
	killAfter time.Duration
	metrics   process.MetricsFlags
}

// workSettings are the settings that work shares with serve. The log level is warn by default, because the command
// writes to standard error, too.
type workSettings struct {
	LogLevel  slog.Level         `split_words:"true" default:"warn"`
	LogFormat settings.LogFormat `split_words:"true" default:"auto"`

	MetricsAddr string `split_words:"true"`
}

// Work returns the command work.
func Work(a *cli.App) *cobra.Command {
	var o workOptions
	cmd := &cobra.Command{
		Use:   "work <queues> --group <group> [flags] -- <command> [arguments]",
		Short: "Run a command for every message of a queue, or of several",
		Long: fmt.Sprintf(`Runs the command once per message, until SIGTERM or SIGINT. Messages are delivered at
least once: the command may get a message again, and must not rely on order.

<queues> is one queue, or several separated by commas, which share --concurrency. While
several queues have a backlog, each gets its share of the deliveries: by weight
(high=6,normal=3,low=1), or equal shares (high,normal,low). With --strict, a queue is
served only while the queues named before it are empty, so the last queue may wait for
ever. If --concurrency is less than two for each queue (and partition), it takes up to
100 ms to notice a message in an idle queue.

The payload is on standard input. The environment holds

  DUESTREAM_ID, DUESTREAM_QUEUE, DUESTREAM_GROUP
  DUESTREAM_ATTEMPT         from 1
  DUESTREAM_DUE_MS          Unix ms
  DUESTREAM_ENTRY           ID of the stream entry
  DUESTREAM_HEADER_<NAME>   a header, its name in capitals, with _ for all but A-Z 0-9
  DUESTREAM_HEADERS         all headers as a JSON object
  DUESTREAM_REDIS_URL, DUESTREAM_PREFIX   the Redis and the prefix of the queue

and the variables of this process, without DUESTREAM_REDIS_PASSWORD and
DUESTREAM_SENTINEL_PASSWORD. If the command uses Redis too, let it read
DUESTREAM_REDIS_PASSWORD_FILE, or put the password into the URL, which is passed on as
it is.

The output of the command is passed through. Its exit code decides:

  0    done: acknowledged
  %d   dead letter at once (EX_DATAERR): the message is no good
  %d   and all others: delivered again by policy, at the end a dead letter;
       the last 1 KiB of its standard error is kept as the error

The command leads a process group. The group gets SIGTERM, and SIGKILL after
--kill-after, in three cases. If the command exceeds its time limit, the attempt has
failed. If the delivery is lost, another worker has the message. If this process must
stop, the message is delivered again, and no attempt is counted. A command that gets
SIGTERM counts as not done, whatever its exit code.

The time limit is the first of these that is set: the message's (schedule
--handler-timeout), the policy's (queue set handler_timeout=), --timeout. Without a limit,
a command that hangs keeps its message, its slot and the ordering key for ever. Set a
limit of a few times the usual duration.

If the command cannot be started for 2 s (it is gone, or may not be executed), this
process lets running commands end, gives back its other messages with no attempt
counted, and exits with 1. After a second signal to this process, the process groups have
a second to end, and are killed. Their messages are delivered again after the visibility
timeout.

DUESTREAM_LOG_LEVEL, DUESTREAM_LOG_FORMAT and DUESTREAM_METRICS_ADDR count here as well.
The default log level is warn.`, commandDeadLetter, commandRetry),
		Example: `  duestream work emails --group mailer --concurrency 4 -- ./send-mail --from me@example.org
  duestream work emails --group audit -- sh -c 'cat >> audit.log'
  duestream work high,normal,low --strict --group mailer --concurrency 6 -- ./send-mail`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case dash < 0:
				return fmt.Errorf("the command must stand behind --, " +
					"as in: duestream work <queues> --group <group> -- <command>")
			case dash != 1:
				return fmt.Errorf("there must be one queue before --, or several separated by commas, not %d words", dash)
			case len(args) < 2:
				return fmt.Errorf("there is no command behind --")
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.Group, "group", "g", "", "consumer group; created if it does not exist (required)")
	f.BoolVar(&o.strict, "strict", false, "serve a queue only while the queues named before it are empty")
	f.StringVar(&o.Consumer, "consumer", "",
		"name of this worker, unique among the group's running workers; default: host, process, random")
	f.IntVarP(&o.Concurrency, "concurrency", "n", 1, "commands to run at the same time")
	f.StringVar((*string)(&o.GroupRate), "group-rate", "",
		"rate for each queue at which the workers of the group together start commands: 10/s, 30/m or 6/h; default: no limit")
	f.IntVar(&o.GroupBurst, "group-burst", 0,
		"with --group-rate: commands that may start at once; default: a tenth of the rate per second, at least one")
	flags.DurationVar(f, &o.HandlerTimeout, "timeout", 0,
		"time limit of a command, if neither the message nor the policy has one (handler_timeout); 0 = none")
	flags.DurationVar(f, &o.ShutdownTimeout, "shutdown-timeout", 20*time.Second,
		"time for running commands to end by themselves after a signal to stop")
	flags.DurationVar(f, &o.killAfter, "kill-after", 5*time.Second, "time between SIGTERM and SIGKILL")
	o.metrics.Flags(cmd)
	_ = cmd.MarkFlagRequired("group")
	return a.WithRun(cmd, func(args []string) (err error) {
		if o.Concurrency < 1 {
			return usage.Errorf("concurrency %d: must be at least 1", o.Concurrency)
		}
		if err := o.readQueues(args[0]); err != nil {
			return err
		}
		if o.path, err = exec.LookPath(args[1]); err != nil {
			return usage.Errorf("command: %w", err)
		}
		return admin.CheckGroup(o.Group)
	}, func(ctx context.Context, args []string) error { return runWork(ctx, a, o, args[0], args[1:]) })
}

// readQueues parses the queues of the argument: one, or several with optional weights.
func (o *workOptions) readQueues(text string) error {
	words := strings.Split(text, ",")
	if len(words) == 1 && !strings.Contains(text, "=") {
		if o.strict {
			return usage.Errorf("strict: needs several queues, as in high,normal,low")
		}
		o.Queue = text
		return admin.CheckQueue(text)
	}
	o.Strict = o.strict
	for _, word := range words {
		name, weight, hasWeight := strings.Cut(word, "=")
		q := bridge.WorkerQueue{Queue: name}
		if err := admin.CheckQueue(name); err != nil {
			return err
		}
		if hasWeight {
			var err error
			if q.Weight, err = strconv.Atoi(weight); err != nil || q.Weight < 1 || q.Weight > 1000 {
				return usage.Errorf("weight of %s, %q: must be a whole number from 1 to 1000", name, human.OneLine(weight, 60))
			}
		}
		if o.strict && hasWeight {
			return usage.Errorf("weight of %s: give weights, or --strict, not both", name)
		}
		if slices.ContainsFunc(o.Queues, func(other bridge.WorkerQueue) bool { return other.Queue == name }) {
			return usage.Errorf("queue %s: is named twice", name)
		}
		o.Queues = append(o.Queues, q)
	}
	return nil
}

func runWork(ctx context.Context, a *cli.App, o workOptions, queues string, command []string) error {
	if err := a.Resolve(); err != nil {
		return err
	}
	var s workSettings
	if err := settings.Fill(&s); err != nil {
		return err
	}
	level := new(slog.LevelVar)
	level.Set(s.LogLevel)
	log := process.NewLogger(a.Err, s.LogFormat, level)
	metricsServer, observer, err := o.metrics.Listen(s.MetricsAddr, a.Version, log, nil)
	if err != nil {
		return err
	}
	defer metricsServer.Close()
	var running atomic.Pointer[bridge.Worker]
	process.Probes{Alive: workerAlive(ctx, &running), Ready: workerReady(ctx, &running), Level: level, Log: log,
		Profiles: o.metrics.Profiles}.AddTo(metricsServer)
	metricsServer.Serve()
	r, err := bridge.DialWait(ctx, a.RedisURL, log, a.Passwords)
	if err != nil {
		if ctx.Err() != nil {
			return nil // stopped while it waited for Redis
		}
		return err
	}
	defer r.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	runner := &commandRunner{
		stop: stop,
		path: o.path, args: command, killAfter: o.killAfter,
		redisURL: a.RedisURL, prefix: a.Prefix, out: sharedWriter(a.Out), err: sharedWriter(a.Err),
	}
	cfg := o.WorkerConfig
	cfg.Redis, cfg.Prefix, cfg.Handler, cfg.Logger = r, a.Prefix, runner.handle, log
	cfg.Observer = observer
	cfg.CancelGrace = o.killAfter + 2*time.Second
	cfg.AbandonAfter = 2*o.killAfter + 5*time.Second // a killed command's output may stay open for another killAfter
	if cfg.ShutdownTimeout == 0 {
		cfg.ShutdownTimeout = -1 // stop at once; 0 would mean the worker's default
	}
	if term.IsTerminal(a.Err) {
		cfg.Retried = func(m *bridge.Message, delay time.Duration, err string) { noteRetried(a, m, delay, err) }
	}
	w, err := bridge.NewWorker(cfg)
	if err != nil {
		return err
	}
	running.Store(w)
	if term.IsTerminal(a.Err) {
		a.Note("reads %s as %s of group %s, %s at a time; Ctrl-C stops", queues, human.OneLine(w.Consumer(), 80),
			human.OneLine(o.Group, 60), human.Counted(o.Concurrency, "message"))
	}
	op, err := admin.New(r, a.Prefix)
	if err != nil {
		return err
	}
	warned := make(chan struct{})
	go func() {
		defer close(warned)
		cli.WarnNoBridge(ctx, a, op)
	}()
	err = errors.Join(w.Run(ctx), runner.startError())
	<-warned
	return err
}

// noteRetried prints a line about a message that will be delivered again.
func noteRetried(a *cli.App, m *bridge.Message, delay time.Duration, err string) {
	a.Note("%s  attempt %d failed, again in %s: %s", human.OneLine(m.ID, 60), m.Attempt,
		human.Short(delay), human.OneLine(err, 200))
}

// workerAlive returns a function that returns the reason to restart this process, or nil.
func workerAlive(ctx context.Context, w *atomic.Pointer[bridge.Worker]) func() error {
	return func() error {
		if running := w.Load(); running != nil && ctx.Err() == nil {
			return running.Alive()
		}
		return nil
	}
}

// workerReady returns a function that returns the reason why the worker does not do its work now, or nil.
func workerReady(ctx context.Context, w *atomic.Pointer[bridge.Worker]) func() error {
	return func() error {
		running := w.Load()
		switch {
		case ctx.Err() != nil:
			return errors.New("the worker stops")
		case running == nil:
			return errors.New("the worker starts, and waits for Redis")
		}
		return running.Ready()
	}
}
