package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
)

// freshHeartbeat is how old the last heartbeat of a live bridge may be; bridges send one every second.
const freshHeartbeat = 5 * time.Second

func (a *app) health() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Check that Redis answers and a bridge is alive",
		Long: `Succeeds when Redis answers and at least one bridge of the prefix has sent a
heartbeat within the last 5 s, by the clock of Redis. For health checks of containers.`,
		Example: "  duestream health\n  duestream health --json",
		Args:    cobra.NoArgs,
		RunE: a.do(func(ctx context.Context, _ []string) error {
			ctx, cancel := context.WithTimeout(ctx, freshHeartbeat)
			defer cancel()
			r, err := a.connect(ctx)
			if err != nil {
				return err
			}
			defer r.Close()
			bridges, err := bridge.Bridges(ctx, r, a.prefix)
			if err != nil {
				return err
			}
			return a.printHealth(bridges)
		}),
	}
	a.jsonFlag(cmd)
	return cmd
}

type bridgeHealth struct {
	ID    string `json:"id"`
	Age   int64  `json:"age_ms"`
	Fresh bool   `json:"fresh"`
}

func (a *app) printHealth(bridges []bridge.Heartbeat) error {
	report := struct {
		Healthy bool           `json:"healthy"`
		Bridges []bridgeHealth `json:"bridges"`
	}{Bridges: []bridgeHealth{}}
	fresh := 0
	for _, b := range bridges {
		h := bridgeHealth{ID: b.Bridge, Age: b.Age.Milliseconds(), Fresh: b.Age <= freshHeartbeat}
		report.Bridges = append(report.Bridges, h)
		if h.Fresh {
			fresh++
		}
	}
	report.Healthy = fresh > 0
	if err := a.print(report, func() { fmt.Fprintf(a.out, "Redis answers, bridges alive: %d\n", fresh) }); err != nil {
		return err
	}
	if fresh == 0 {
		return errors.New("no live bridge: nothing becomes ready until one runs (`duestream serve`)")
	}
	return nil
}
