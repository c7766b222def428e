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

// Command returns the command functions.
func Command(a *cli.App) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "functions",
		Short: "Load the scripts into Redis, so that clients in any language can call them",
		Long: `Loads duestream's scripts into Redis as a library of functions, which clients in any
language call with FCALL: to schedule without duplicates, retry with a delay, dead-letter,
release, extend. Nobody needs them: plain ZADD, XREADGROUP and XACK stay enough, and Go
clients and bridges use none of them. docs/reference/protocol.md, section 17, says how they are called.`,
		Example: `  duestream functions load
  duestream functions show
  duestream functions dump | redis-cli -x FUNCTION LOAD`,
	}, functionsLoad(a), functionsShow(a), functionsDelete(a), functionsDump(a))
}

// onServers prints the result for each server. If all servers failed, it returns that error at once. If some failed,
// it returns exit.ErrPartly after printing.
func onServers(a *cli.App, rows []admin.Library, err error, functions []admin.Function, text func()) error {
	failed := 0
	for _, l := range rows {
		if l.Err != nil {
			failed++
		}
	}
	if err != nil && failed == len(rows) || errors.Is(err, admin.ErrForeignFunctions) || errors.Is(err, admin.ErrNewerFunctions) {
		return explainFunctions(err)
	}
	return errors.Join(a.Print(librariesJSON(a.Version, rows, functions), text), partly(a, rows, failed))
}

// changed prints the change on each server.
func changed(a *cli.App, rows []admin.Library, err error, what func(admin.Library) string) error {
	return onServers(a, rows, err, nil, func() {
		var lines [][]string
		for _, l := range rows {
			if l.Err == nil {
				lines = append(lines, []string{l.Server, what(l)})
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

// librariesReport is the JSON of load, delete and show. Release and Source are those of this program.
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
