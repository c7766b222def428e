package workers

import (
	"context"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

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
	f.BoolVar(&o.AllowHTTP, "allow-http", false,
		"let the URL be http://…: anyone on the way can read and change what is sent")
	f.StringArrayVar(&o.networks, "allow-network", nil,
		"a network outside of the public internet that may be dialled, like 10.1.0.0/16; may be given again")
	f.StringVar(&o.keyFile, "key-file", "",
		"file with the signing key, whsec_…; - is standard input; default: a key is made, or stays")
	f.Var(&o.headers, "header", "header to add to each request; may be given again")
	f.StringArrayVar(&o.statuses, "dead-status", nil, "status codes that dead-letter at once, besides 410")
	flags.DurationVar(f, &o.Timeout, "timeout", 10*time.Second, "time for a request and its answer; at most 1m")
	f.IntVarP(&o.Concurrency, "concurrency", "n", 8, "requests under way from each process")
	f.IntVar(&o.Failures, "failures", 10, "failures in a row that open the circuit; -1 = never")
	flags.DurationVar(f, &o.Interval, "interval", 5*time.Second, "time before the first probe while the circuit is open")
	f.StringVar((*string)(&o.Rate), "rate", "",
		"requests of all processes together, as 50/s, 30/m or 1/h; default: no limit")
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
