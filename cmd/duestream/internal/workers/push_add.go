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
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// targetOptions are the flags of a target. Some flags set a field of PushTarget directly. fill sets the fields whose
// flags must be parsed: signing key, headers, networks and statuses.
type targetOptions struct {
	admin.PushTarget
	keyFile            string
	headers            flags.Headers
	networks, statuses []string
}

func (o *targetOptions) fill(queue string, in io.Reader) (err error) {
	o.Queue, o.Headers = queue, o.headers
	for _, text := range splitAtCommas(o.networks) {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return usage.Errorf("allow-network %q: must be like 10.1.0.0/16", human.OneLine(text, 60))
		}
		o.Networks = append(o.Networks, network)
	}
	for _, text := range splitAtCommas(o.statuses) {
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

// splitAtCommas returns the values of a repeated flag, each split at its commas, without empty texts.
func splitAtCommas(values []string) []string {
	return strings.FieldsFunc(strings.Join(values, ","), func(r rune) bool { return r == ',' })
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
		Short: "Post the messages of a group to a URL",
		Long: `Sets or changes the target of a queue's group: the URL to which its messages are posted.
A setting that you do not give gets its default; only the signing key stays. The group
is created if it does not exist, and gets every message from then on.

Without --key-file a signing key is made, and printed once. With this key the receiver
verifies the requests.

Addresses outside of the public internet are refused when they are dialled, unless
--allow-network names their network.

The circuit of a target opens after as many failures in a row as --failures says. A
failure is no connection, no answer in time, or 502, 503 or 504. While the circuit is
open, messages stay where they are. A few are posted as probes, first after --interval,
then at growing intervals up to --max-interval.`,
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
	f.IntVarP(&o.Concurrency, "concurrency", "n", 8, "requests of each process at the same time")
	f.IntVar(&o.Failures, "failures", 10, "failures in a row that open the circuit; -1 = never")
	flags.DurationVar(f, &o.Interval, "interval", 5*time.Second, "time before the first probe while the circuit is open")
	f.StringVar((*string)(&o.Rate), "rate", "",
		"requests of all processes together, as 50/s, 30/m or 1/h; default: no limit")
	f.IntVar(&o.Burst, "burst", 0,
		"with --rate: requests that may be sent at once; default: a tenth of the rate per second, at least one")
	flags.DurationVar(f, &o.MaxInterval, "max-interval", 5*time.Minute, "longest time between two probes")
	_ = cmd.MarkFlagRequired("group")
	_ = cmd.MarkFlagRequired("url")
	fill := func(args []string) error { return o.fill(args[0], a.In) }
	return a.WithAdmin(cmd, fill, func(ctx context.Context, op *admin.Admin, args []string) error {
		change, err := op.SetPushTarget(ctx, o.PushTarget)
		if err != nil {
			return noteUncertainKey(a, err, change.Key)
		}
		did := output.Change(change.Added, change.Changed)
		return printTarget(a, pushChanged{args[0], o.Group, did, change.Key})
	})
}
