package main

import "github.com/spf13/cobra"

func (a *app) resume() *cobra.Command {
	return a.holding(false, &cobra.Command{
		Use:   "resume <queue>...",
		Short: "Have paused queues go on",
		Long: `Has paused queues go on: what became due meanwhile is ready at once, oldest first. May be
repeated.`,
		Example: "  duestream resume emails\n  duestream resume --all",
	})
}
