package tools

import (
	"context"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/cmd/duestream/internal/cli"
)

// Version returns the command version.
func Version(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print the version", Example: "  duestream version --json"}
	a.JSONFlag(cmd)
	return a.WithRun(cmd, nil, func(context.Context, []string) error {
		return a.Print(map[string]string{"version": a.Version, "go": runtime.Version()}, func() {
			fmt.Fprintf(a.Out, "duestream %s (%s, %s/%s)\n", a.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		})
	})
}
