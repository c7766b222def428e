package functions

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
)

func functionsDump(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print the library as Lua, to read it or to load it with redis-cli",
		Long: `Prints the library as Lua, to read it or to load it with redis-cli. Redis is not touched.
On a cluster each master needs the library. FUNCTION LOAD REPLACE replaces an older
library.`,
		Example: "  duestream functions dump | less\n  duestream functions dump | redis-cli -x FUNCTION LOAD REPLACE",
	}
	return a.WithRun(cmd, nil, func(context.Context, []string) error {
		_, err := fmt.Fprint(a.Out, admin.FunctionsLibrary(a.Version))
		return err
	})
}
