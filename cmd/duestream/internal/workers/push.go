package workers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// Push returns the command push.
func Push(a *cli.App) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use: "push", Short: "Post messages to URLs",
		Long: `Callbacks: the messages of a queue's group are posted to a URL, each in a signed request.
What answers 2xx is acknowledged; the rest is delivered again by policy. Some process must
do it: duestream push run, any number of them.`,
		Example: `  duestream push add orders --group partner --url https://example.com/hook
  duestream push run
  duestream push list`,
	}, pushAdd(a), pushList(a), pushRm(a), pushRotate(a), pushRun(a))
}

// targetOptions are the flags of a target. Those that are no field of it are parsed by fill.
type targetOptions struct {
	admin.PushTarget
	keyFile            string
	headers            flags.Headers
	networks, statuses []string
}

func (o *targetOptions) fill(queue string, in io.Reader) (err error) {
	o.Queue, o.Headers = queue, o.headers
	for text := range strings.SplitSeq(strings.Join(o.networks, ","), ",") {
		if text == "" {
			continue
		}
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return usage.Errorf("allow-network %q: must be like 10.1.0.0/16", human.OneLine(text, 60))
		}
		o.Networks = append(o.Networks, network)
	}
	for text := range strings.SplitSeq(strings.Join(o.statuses, ","), ",") {
		if text == "" {
			continue
		}
		code, err := strconv.Atoi(text)
		if err != nil {
			return usage.Errorf("dead-status %q: must be a status code, like 404", human.OneLine(text, 60))
		}
		o.DeadStatus = append(o.DeadStatus, code)
	}
	if o.keyFile != "" {
		key, err := readKey(o.keyFile, in)
		if err != nil {
			return err
		}
		o.Keys = []string{key}
	}
	return admin.CheckPushTarget(o.PushTarget)
}

// readKey reads a signing key from a file; "-" is standard input.
func readKey(path string, in io.Reader) (string, error) {
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return "", usage.Errorf("key-file: %w", err)
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, 4<<10))
	if err != nil {
		return "", usage.Errorf("key-file: %w", err)
	}
	key := strings.TrimSpace(string(text))
	return key, admin.CheckPushKey(key)
}

func pushAdd(a *cli.App) *cobra.Command {
	var o targetOptions
	cmd := &cobra.Command{
		Use:   "add <queue>",
		Short: "Have the messages of a group posted to a URL",
		Long: `Sets where the messages of a queue's group are posted to, or changes it: what is not given
has its default then, but for the signing key, which stays. The group is created, so that
it gets every message from now on.

Without --key-file a signing key is made, and printed this once: whoever receives the
requests verifies them with it.

Addresses outside of the public internet are refused when they are dialled, unless
--allow-network names their network.

After --failures in a row that say that the target is down (no connection, no answer in
time, 502, 503, 504) its circuit opens: messages stay where they are, and a few are tried,
--interval later, then ever later, up to --max-interval.`,
		Example: `  duestream push add orders --group partner --url https://example.com/hook
  duestream push add orders --group erp --url http://10.1.2.3/in --allow-http --allow-network 10.1.0.0/16
  duestream push add orders --group partner --url https://example.com/hook --dead-status 404,422 --rate 20/s`,
	}
	f := cmd.Flags()
	f.StringVarP(&o.Group, "group", "g", "", "consumer group; created if it does not exist (required)")
	f.StringVar(&o.URL, "url", "", "where to post to: https://… (required)")
	f.BoolVar(&o.AllowHTTP, "allow-http", false, "let the URL be http://…: anyone on the way can read and change what is sent")
	f.StringArrayVar(&o.networks, "allow-network", nil, "a network outside of the public internet that may be dialled, like 10.1.0.0/16; may be given again")
	f.StringVar(&o.keyFile, "key-file", "", "file with the signing key, whsec_…; - is standard input; default: a key is made, or stays")
	f.Var(&o.headers, "header", "header to add to each request; may be given again")
	f.StringArrayVar(&o.statuses, "dead-status", nil, "status codes that dead-letter at once, besides 410")
	flags.DurationVar(f, &o.Timeout, "timeout", 10*time.Second, "time for a request and its answer; at most 1m")
	f.IntVarP(&o.Concurrency, "concurrency", "n", 8, "requests under way from each process")
	f.IntVar(&o.Failures, "failures", 10, "failures in a row that open the circuit; -1 = never")
	flags.DurationVar(f, &o.Interval, "interval", 5*time.Second, "time before the first probe while the circuit is open")
	f.StringVar((*string)(&o.Rate), "rate", "", "requests of all processes together, as 50/s, 30/m or 1/h; default: no limit")
	f.IntVar(&o.Burst, "burst", 0, "with --rate, so many at once; default: a tenth of a second's, at least one")
	flags.DurationVar(f, &o.MaxInterval, "max-interval", 5*time.Minute, "longest time between two probes")
	_ = cmd.MarkFlagRequired("group")
	_ = cmd.MarkFlagRequired("url")
	fill := func(args []string) error { return o.fill(args[0], a.In) }
	return a.WithAdmin(cmd, fill, func(ctx context.Context, op *admin.Admin, args []string) error {
		change, err := op.SetPushTarget(ctx, o.PushTarget)
		if err != nil {
			return keyOf(a, err, change.Key)
		}
		did := "unchanged"
		if change.Added {
			did = "added"
		} else if change.Changed {
			did = "changed"
		}
		return printTarget(a, pushChanged{args[0], o.Group, did, change.Key})
	})
}

// pushChanged is the result of a change to a target, as JSON.
type pushChanged struct {
	Queue string `json:"queue"`
	Group string `json:"group"`
	Did   string `json:"did"`
	Key   string `json:"key,omitempty"` // the key that was made
}

// keyOf prints a key that was made and may be in force although the call failed: nobody else knows the key.
func keyOf(a *cli.App, err error, made string) error {
	if made != "" && (errors.Is(err, bridge.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)) {
		a.Note("this signing key may be in force, repeat with it in --key-file: %s", made)
	}
	return err
}

func printTarget(a *cli.App, c pushChanged) error {
	return a.Print(c, func() {
		fmt.Fprintf(a.Out, "%s/%s  %s\n", c.Queue, human.OneLine(c.Group, 60), c.Did)
		if c.Key != "" {
			fmt.Fprintf(a.Out, "signing key, shown this once: %s\n", c.Key)
		}
	})
}

// pushTarget is a target as JSON.
type pushTarget struct {
	Queue       string       `json:"queue"`
	Group       string       `json:"group"`
	URL         string       `json:"url"` // without a query
	AllowHTTP   bool         `json:"allow_http"`
	Keys        int          `json:"keys"`
	Networks    []string     `json:"networks"`
	Headers     []string     `json:"headers"` // names only
	DeadStatus  []int        `json:"dead_status"`
	Timeout     admin.Millis `json:"timeout_ms"`
	Concurrency int          `json:"concurrency"`
	Failures    int          `json:"failures"`
	Interval    admin.Millis `json:"interval_ms"`
	MaxInterval admin.Millis `json:"max_interval_ms"`
	Rate        bridge.Rate  `json:"rate,omitempty"`
	Burst       int          `json:"burst,omitempty"`
	Problem     string       `json:"problem,omitempty"`
}

func newPushTarget(s admin.PushState) pushTarget {
	networks := make([]string, len(s.Networks))
	for i, network := range s.Networks {
		networks[i] = network.String()
	}
	headers := slices.Sorted(maps.Keys(s.Headers))
	if headers == nil {
		headers = []string{}
	}
	statuses := append([]int{}, s.DeadStatus...)
	return pushTarget{s.Queue, s.Group, s.URL, s.AllowHTTP, s.KeyCount, networks, headers, statuses, admin.Millis(s.Timeout),
		s.Concurrency, s.Failures, admin.Millis(s.Interval), admin.Millis(s.MaxInterval), s.Rate, s.Burst, s.Problem}
}

func pushList(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [<queue>]",
		Short: "List where messages are posted to",
		Long: `Lists the targets of a queue, or of all queues. Signing keys, values of headers and what
follows ? in a URL are not shown.`,
		Example: "  duestream push list\n  duestream push list orders --json",
	}
	return a.WithKnownQueues(cmd, nil, func(ctx context.Context, op *admin.Admin, queues []string) (err error) {
		if len(queues) == 0 {
			if queues, err = op.Queues(ctx); err != nil {
				return err
			}
		}
		list := a.List("QUEUE", "GROUP", "URL", "KEYS", "AT A TIME", "RATE", "TIMEOUT", "STATE")
		for _, queue := range queues {
			targets, err := op.PushTargets(ctx, queue)
			if err != nil {
				return err
			}
			for _, s := range targets {
				state := "set"
				if s.Problem != "" {
					state = "wrong: " + human.OneLine(s.Problem, 200)
				}
				list.Add(newPushTarget(s), queue, human.OneLine(s.Group, 60), human.OneLine(s.URL, 120), fmt.Sprint(s.KeyCount),
					fmt.Sprint(s.Concurrency), string(s.Rate), human.Exact(s.Timeout), state)
			}
		}
		return list.End("no targets")
	})
}

func pushRm(a *cli.App) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "rm <queue>",
		Short: "Have nothing more posted for a group",
		Long: `Removes where the messages of a group are posted to: within seconds nothing more is. The
group stays, and keeps every message for whoever works for it next. If nobody will, destroy
it: redis-cli XGROUP DESTROY 'duestream:{<queue>}:stream' <group>, in each partition.`,
		Example: "  duestream push rm orders --group partner",
	}
	cmd.Flags().StringVarP(&name, "group", "g", "", "consumer group (required)")
	_ = cmd.MarkFlagRequired("group")
	check := func([]string) error { return admin.CheckGroup(name) }
	return a.WithKnownQueues(cmd, check, func(ctx context.Context, op *admin.Admin, args []string) error {
		if err := op.RemovePushTarget(ctx, args[0], name); err != nil {
			return err
		}
		a.Note("the group %s stays, and keeps messages", human.OneLine(name, 60))
		return printTarget(a, pushChanged{Queue: args[0], Group: name, Did: "removed"})
	})
}

func pushRotate(a *cli.App) *cobra.Command {
	var name, file string
	var drop bool
	cmd := &cobra.Command{
		Use:   "rotate <queue>",
		Short: "Give a target a new signing key",
		Long: `Makes a new signing key, and prints it this once. Requests are signed with it and with the
one before, so that whoever verifies them may change at any time. Afterwards --drop-old has
them signed with the new one alone. A key that is older than both is dropped at once.`,
		Example: "  duestream push rotate orders --group partner\n  duestream push rotate orders --group partner --drop-old",
	}
	f := cmd.Flags()
	f.StringVarP(&name, "group", "g", "", "consumer group (required)")
	f.StringVar(&file, "key-file", "", "file with the new key, whsec_…; - is standard input; default: one is made")
	f.BoolVar(&drop, "drop-old", false, "sign with the newest key alone from now on")
	cmd.MarkFlagsMutuallyExclusive("key-file", "drop-old")
	_ = cmd.MarkFlagRequired("group")
	var key string
	check := func([]string) (err error) {
		if file != "" {
			if key, err = readKey(file, a.In); err != nil {
				return err
			}
		}
		return admin.CheckGroup(name)
	}
	return a.WithKnownQueues(cmd, check, func(ctx context.Context, op *admin.Admin, args []string) error {
		if drop {
			if err := op.DropOldPushKey(ctx, args[0], name); err != nil {
				return err
			}
			return printTarget(a, pushChanged{Queue: args[0], Group: name, Did: "dropped the old key"})
		}
		made, err := op.RotatePushKey(ctx, args[0], name, key)
		if key != "" {
			made = "" // the user gave the key, and has it
		}
		if err != nil {
			return keyOf(a, err, made)
		}
		return printTarget(a, pushChanged{args[0], name, "rotated", made})
	})
}
