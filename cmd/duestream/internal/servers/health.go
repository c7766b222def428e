package servers

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/heartbeat"
)

// Health returns the command health.
func Health(a *cli.App) *cobra.Command {
	var self, ready bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Check that Redis answers and a bridge is alive",
		Long: `Succeeds when Redis answers and at least one bridge of the prefix has sent a
heartbeat within the last 5 s, by the clock of Redis.

--self does not ask Redis. It reads the DUESTREAM_HEALTH_FILE of the bridge on this
machine. The check succeeds while the bridge's process works, also while it waits for
Redis, and fails if the process hangs or has ended. Use --self for health checks of
containers.

--ready asks a process of this machine over HTTP, at its DUESTREAM_METRICS_ADDR, whether
it does its work: Redis answers, and its queues are on time. The command names the queues
that are late.`,
		Example: "  duestream health\n  duestream health --json\n  DUESTREAM_HEALTH_FILE=/run/duestream/health duestream health --self",
	}
	cmd.Flags().BoolVar(&self, "self", false, "ask the bridge on this machine, by its DUESTREAM_HEALTH_FILE, and not Redis")
	cmd.Flags().BoolVar(&ready, "ready", false, "ask /readyz of the process at DUESTREAM_METRICS_ADDR, and not Redis")
	cmd.MarkFlagsMutuallyExclusive("self", "ready")
	a.JSONFlag(cmd)
	return a.WithRun(cmd, nil, func(ctx context.Context, _ []string) error {
		switch {
		case self:
			return healthOfSelf(a)
		case ready:
			return healthOfListener(ctx, a)
		}
		ctx, cancel := context.WithTimeout(ctx, heartbeat.Fresh)
		defer cancel()
		return a.UseAdmin(ctx, func(op *admin.Admin) error {
			bridges, err := op.Bridges(ctx)
			if err != nil {
				return err
			}
			return printHealth(a, bridges)
		})
	})
}

func printHealth(a *cli.App, bridges []admin.Heartbeat) error {
	report := struct {
		Healthy bool               `json:"healthy"`
		Bridges []heartbeat.Health `json:"bridges"`
	}{Bridges: heartbeat.HealthOf(bridges)}
	_, fresh := heartbeat.List(bridges, false)
	report.Healthy = fresh > 0
	err := a.Print(report, func() {
		fmt.Fprintf(a.Out, "Redis answers, bridges alive: %d\n", fresh)
		if len(bridges) > 0 {
			a.Table(heartbeat.Rows(bridges))
		}
	})
	if err != nil {
		return err
	}
	if fresh == 0 {
		return errors.New("no live bridge: nothing becomes ready until one runs (`duestream serve`)")
	}
	return nil
}
