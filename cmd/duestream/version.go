package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print the version", Example: "  duestream version --json"}
	a.jsonFlag(cmd)
	return a.does(cmd, nil, func(context.Context, []string) error {
		return a.print(map[string]string{"version": a.version, "go": runtime.Version()}, func() {
			fmt.Fprintf(a.out, "duestream %s (%s, %s/%s)\n", a.version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		})
	})
}
