// Package functions has the commands about the library of functions in Redis.
package functions

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// Command returns the command "functions".
func Command(a *cli.App) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "functions",
		Short: "Load the scripts into Redis, so that clients in any language can call them",
		Long: `Loads duestream's scripts into Redis as a library of functions. Clients in any language
call them with FCALL, to schedule without duplicates, retry with a delay, dead-letter,
release or extend. The functions are optional: plain ZADD, XREADGROUP and XACK are
enough, and Go clients and bridges do not use the functions. docs/reference/protocol.md,
section 17, describes the calls.`,
		Example: `  duestream functions load
  duestream functions show
  duestream functions dump | redis-cli -x FUNCTION LOAD`,
	}, functionsLoad(a), functionsShow(a), functionsDelete(a), functionsDump(a))
}

// printServers prints the result for each server. It returns err without printing if all servers failed, or if the
// library on a server is foreign or newer. After printing it returns exit.ErrPartly if some servers failed, and
// exit.ErrNothing if all failed and err is nil.
func printServers(a *cli.App, rows []admin.Library, err error, functions []admin.Function, printText func()) error {
	failed := 0
	for _, l := range rows {
		if l.Err != nil {
			failed++
		}
	}
	allFailed := err != nil && failed == len(rows)
	if allFailed || errors.Is(err, admin.ErrForeignFunctions) || errors.Is(err, admin.ErrNewerFunctions) {
		return explainFunctions(err)
	}
	return errors.Join(a.Print(librariesJSON(a.Version, rows, functions), printText), partly(a, rows, failed))
}

// printChanges prints the change on each server.
func printChanges(a *cli.App, rows []admin.Library, err error, describe func(admin.Library) string) error {
	return printServers(a, rows, err, nil, func() {
		var lines [][]string
		for _, l := range rows {
			if l.Err == nil {
				lines = append(lines, []string{l.Server, describe(l)})
			}
		}
		term.Table(a.Out, lines)
	})
}

// libraryRow is the result for one server as JSON.
type libraryRow struct {
	admin.Library
	Error string `json:"error,omitempty"`
}

// librariesReport is the JSON of load, delete and show. Release is the version of this program, and Source the hash of
// its library's code.
type librariesReport struct {
	Release   string           `json:"release"`
	Source    string           `json:"source"`
	Servers   []libraryRow     `json:"servers"`
	Functions []admin.Function `json:"functions,omitempty"`
}

func librariesJSON(version string, rows []admin.Library, functions []admin.Function) librariesReport {
	report := librariesReport{Release: version, Source: admin.FunctionsSource(), Servers: []libraryRow{}, Functions: functions}
	for _, l := range rows {
		row := libraryRow{Library: l}
		if l.Err != nil {
			row.Error = l.Err.Error()
		}
		report.Servers = append(report.Servers, row)
	}
	return report
}

// libraryVersion returns a library's release and the hash of its code, as text.
func libraryVersion(release, source string) string {
	if source == "" {
		return "(not ours)"
	}
	return fmt.Sprintf("%s (%s)", human.OrDash(human.OneLine(release, 40)), human.OneLine(source, 40))
}

// partly notes the error of each server that failed. It returns exit.ErrPartly if some failed, and exit.ErrNothing if
// all failed.
func partly(a *cli.App, rows []admin.Library, failed int) error {
	if failed == 0 {
		return nil
	}
	for _, l := range rows {
		if l.Err != nil {
			a.Note("duestream: %s", l.Err.Error())
		}
	}
	if failed == len(rows) {
		return fmt.Errorf("%w: failed on %s; repeat the command", exit.ErrNothing, human.Counted(failed, "server"))
	}
	return fmt.Errorf("%w: failed on %d of %s, done on the others; repeat the command", exit.ErrPartly, failed,
		human.Counted(len(rows), "server"))
}

type functionsDenied struct{ error }

func (e functionsDenied) Unwrap() error { return e.error }

func (e functionsDenied) Is(target error) bool { return target == exit.ErrFunctionsDenied }

func explainFunctions(err error) error {
	if errors.Is(err, bridge.ErrDenied) {
		return functionsDenied{err}
	}
	return err
}
