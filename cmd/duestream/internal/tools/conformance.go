package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/conformance"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/tryout"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

type conformanceOptions struct {
	conformance.Config
	producer, worker, list, verbose bool
	level, pattern                  string
}

// Conformance returns the command conformance.
func Conformance(a *cli.App) *cobra.Command {
	var o conformanceOptions
	cmd := &cobra.Command{
		Use:   "conformance (--worker | --producer) [flags] -- <command> [arguments]",
		Short: "Test whether a producer or worker keeps to the protocol",
		Long: `Tests a producer or a worker in any language with the cases of the protocol. It prints
the level that the program reaches (minimal, good, complete: docs/reference/protocol.md,
section 15), or the rule that it breaks, where the rule is written, and what the program
did.

docs/reference/conformance.md describes what the command has to do on standard input and
output. The environment of the command names the server, the prefix and the queue.

The kit starts a redis-server or valkey-server of its own. Cases that disturb others (a
restart, a full memory) get further servers. With --redis the kit uses that server, under
a prefix of its own that it empties at the end. In this case it leaves out the cases that
disturb others, and the certificate says so. DUESTREAM_REDIS_URL and DUESTREAM_PREFIX do
not count.

With --level complete the kit loads the functions library (duestream functions load)
into its own servers, for programs that use the library. With --redis you decide whether
to load it.

The exit code is 0 if the level is reached, and 1 if it is not.`,
		Example: `  duestream conformance --worker -- python3 worker.py
  duestream conformance --worker --level complete --json -- ./my-worker
  duestream conformance --producer --level complete -- python3 producer.py
  duestream conformance --producer --server /opt/valkey/bin/valkey-server -- node producer.js
  duestream conformance --worker --case 'partitions*' --verbose -- ./my-worker
  duestream conformance --worker --list`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case o.producer == o.worker:
				return errors.New("say what the command is: --worker or --producer")
			case o.list && len(args) > 0:
				return errors.New("--list takes no command")
			case o.list:
				return nil
			case dash < 0 && len(args) > 0:
				return errors.New("the command must stand behind --, as in: duestream conformance --worker -- <command>")
			case dash > 0:
				return fmt.Errorf("unexpected %q before --", args[0])
			case len(args) == 0:
				return errors.New("there is no command behind --")
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.worker, "worker", false, "the command is a worker")
	f.BoolVar(&o.producer, "producer", false, "the command is a producer")
	f.StringVar(&o.level, "level", "good", "level to reach: minimal, good or complete; for a producer good or complete")
	f.StringVar(&o.ServerProgram, "server", "", "redis-server or valkey-server to start; default: the one on the PATH")
	f.StringVar(&o.pattern, "case", "", "only cases of this name, like 'partitions*'; prints no certificate")
	f.BoolVar(&o.list, "list", false, "list the cases with their rules, and run none")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "show what the command writes to standard error")
	flags.DurationVar(f, &o.Visibility, "visibility", conformance.DefaultVisibility,
		"visibility timeout of the queues: longer for a slow machine")
	flags.DurationVar(f, &o.Patience, "patience", conformance.DefaultPatience,
		"longest wait for an expected event, besides visibility timeouts")
	f.IntVar(&o.Parallel, "parallel", conformance.DefaultParallel, "cases to run at a time")
	cli.OfferValues(cmd, "level", "minimal", "good", "complete")
	a.JSONFlag(cmd)
	return a.WithRun(cmd, func(args []string) error {
		o.URL, o.Prefix, o.Command = a.RedisURL, cmp.Or(a.Prefix, conformance.DefaultPrefix), args
		return o.complete()
	}, func(ctx context.Context, _ []string) error { return runConformance(ctx, a, o) })
}

// complete selects the cases and checks the flags. It does not touch Redis.
func (o *conformanceOptions) complete() (err error) {
	if o.Level, err = conformance.ParseLevel(o.level); err != nil {
		return usage.Errorf("%w", err)
	}
	o.Kind = conformance.Worker
	if o.producer {
		o.Kind = conformance.Producer
	}
	o.Cases, o.Partial = conformance.Cases(o.Kind, o.Level), o.pattern != ""
	var errs []error
	if o.Partial {
		if o.Cases, err = conformance.Select(o.Cases, o.pattern); err != nil {
			errs = append(errs, usage.Errorf("%w", err))
		}
	}
	if o.producer && o.Level < conformance.Good {
		errs = append(errs, usage.Errorf("level %q: must be good or complete for a producer; the level minimal is one "+
			"ZADD, which needs no test", o.level))
	}
	if o.Visibility < conformance.MinVisibility || o.Visibility > conformance.MaxVisibility {
		errs = append(errs, usage.Errorf("visibility %s: must be between %s and %s", o.Visibility, conformance.MinVisibility,
			conformance.MaxVisibility))
	}
	if o.Patience < time.Second || o.Patience > time.Hour {
		errs = append(errs, usage.Errorf("patience %s: must be between 1s and 1h", o.Patience))
	}
	if o.Parallel < 1 || o.Parallel > 64 {
		errs = append(errs, usage.Errorf("parallel %d: must be between 1 and 64", o.Parallel))
	}
	if o.URL != "" && o.ServerProgram != "" {
		errs = append(errs, usage.Errorf("--redis uses a server that runs, --server starts one: give one of them"))
	}
	return errors.Join(append(errs, admin.CheckPrefix(o.Prefix+"-0123456789abc"))...)
}

// findPrograms looks up the command and the server program, and refuses a program that does not exist.
func findPrograms(cfg *conformance.Config) error {
	var errs []error
	if _, err := exec.LookPath(cfg.Command[0]); err != nil {
		errs = append(errs, usage.Errorf("command: %w", err))
	}
	switch path, err := exec.LookPath(cfg.ServerProgram); {
	case cfg.URL != "":
	case cfg.ServerProgram == "" && tryout.Find() == "":
		errs = append(errs, usage.Errorf("there is no redis-server or valkey-server on the PATH: install one, name one with "+
			"--server, or use one that runs with --redis"))
	case cfg.ServerProgram == "":
		cfg.ServerProgram = tryout.Find()
	case err != nil:
		errs = append(errs, usage.Errorf("server: %w", err))
	default:
		cfg.ServerProgram = path
	}
	return errors.Join(errs...)
}

func runConformance(ctx context.Context, a *cli.App, o conformanceOptions) error {
	cfg := o.Config
	if o.list {
		return listCases(a, cfg.Cases)
	}
	if err := findPrograms(&cfg); err != nil {
		return err
	}
	progress := term.NewProgress(a.Err, "cases done:")
	defer progress.Clear()
	errOut := term.NewLockedWriter(a.Err)
	if o.verbose {
		cfg.Stderr = errOut
	}
	cfg.Step = func(done, all int) { progress.Of(int64(done), int64(all)) }
	if !a.JSON {
		lastStderr := "" // a program that cannot start writes the same text in each case
		cfg.Done = func(r conformance.Result) {
			progress.Clear()
			if r.Stderr != "" && r.Stderr == lastStderr {
				r.Stderr = "the same as before"
			} else if r.Stderr != "" {
				lastStderr = r.Stderr
			}
			printResult(a.Out, r)
		}
	}
	report, err := conformance.Run(ctx, cfg)
	progress.Clear()
	if err != nil {
		return err
	}
	if err := a.Print(report, func() { printCertificate(a.Out, report) }); err != nil {
		return err
	}
	switch {
	case report.Reached():
		return nil
	case report.Partial:
		return errors.New("not all of these cases passed")
	}
	return fmt.Errorf("the %s does not reach the level %s", report.Kind, report.Asked)
}

func listCases(a *cli.App, cases []conformance.Case) error {
	return a.Print(cases, func() {
		for _, c := range cases {
			fmt.Fprintf(a.Out, "%-22s %-8s  %s\n%33s(protocol.md, section %s)\n", c.Name, c.Level, c.Rule, "", c.Section)
		}
	})
}

func printResult(w io.Writer, r conformance.Result) {
	state := map[conformance.State]string{conformance.Passed: "passed", conformance.Failed: "FAILED",
		conformance.NotTried: "not tried"}[r.State]
	fmt.Fprintf(w, "%-9s  %-22s %-8s %6.1fs\n", state, r.Name, r.Level, float64(r.Millis)/1000)
	indent := func(label, text string) {
		if text != "" {
			fmt.Fprintf(w, "           %-7s %s\n", label, strings.ReplaceAll(text, "\n", "\n                   "))
		}
	}
	switch r.State {
	case conformance.Failed:
		indent("rule:", fmt.Sprintf("%s (protocol.md, section %s)", r.Rule, r.Section))
		indent("seen:", r.Seen)
		indent("stderr:", r.Stderr)
	case conformance.NotTried:
		indent("why:", r.Seen)
	}
	for _, note := range r.Notes {
		indent("note:", note)
	}
}

func printCertificate(w io.Writer, r *conformance.Report) {
	fmt.Fprintf(w, "\n%d passed, %d failed, %d not tried\n", r.Counts.Passed, r.Counts.Failed, r.Counts.NotTried)
	if r.Partial {
		return
	}
	names := map[conformance.State][]string{}
	for _, c := range r.Cases {
		names[c.State] = append(names[c.State], c.Name)
	}
	level := r.Level.String()
	if r.Level == r.Asked && r.Level < conformance.Complete {
		level += " (more was not asked for)"
	}
	rows := [][]string{
		{string(r.Kind), strings.Join(r.Command, " ")},
		{"level", level},
		{"protocol", fmt.Sprint("version ", r.Protocol)},
		{"server", strings.TrimSpace(r.Server.Product + " " + r.Server.Version)},
		{"date", r.Date.Format(time.RFC3339)},
	}
	if r.Unwatched != "" {
		rows = append(rows, []string{"not watched", r.Unwatched})
	}
	if failed := names[conformance.Failed]; len(failed) > 0 {
		rows = append(rows, []string{"failed", strings.Join(failed, ", ")})
	}
	if untried := names[conformance.NotTried]; len(untried) > 0 {
		rows = append(rows, []string{"not tried", strings.Join(untried, ", ")})
	}
	fmt.Fprintf(w, "\ncertificate\n")
	for i := range rows {
		rows[i][0] = "  " + rows[i][0]
	}
	term.Table(w, rows)
}
