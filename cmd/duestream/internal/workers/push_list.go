package workers

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/internal/written"
)

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
	return pushTarget{
		Queue: s.Queue, Group: s.Group, URL: s.URL, AllowHTTP: s.AllowHTTP, Keys: s.KeyCount,
		Networks: networks, Headers: headers, DeadStatus: statuses,
		Timeout: admin.Millis(s.Timeout), Concurrency: s.Concurrency, Failures: s.Failures,
		Interval: admin.Millis(s.Interval), MaxInterval: admin.Millis(s.MaxInterval),
		Rate: s.Rate, Burst: s.Burst, Problem: s.Problem,
	}
}

func pushList(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [<queue>]",
		Short: "List the targets of callbacks",
		Long: `Lists the targets of a queue, or of all queues. Signing keys, values of headers and
the part of a URL behind ? are not shown.`,
		Example: "  duestream push list\n  duestream push list orders --json",
	}
	return a.WithKnownQueues(cmd, nil, func(ctx context.Context, op *admin.Admin, args []string) error {
		queues, err := cli.QueuesOrAll(ctx, op, args)
		if err != nil {
			return err
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
					fmt.Sprint(s.Concurrency), string(s.Rate), written.Duration(s.Timeout), state)
			}
		}
		return list.Finish("no targets")
	})
}
