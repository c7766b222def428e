package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
)

func (a *app) functions() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "functions",
		Short: "Load the scripts into Redis, so that clients in any language can call them",
		Long: `Loads duestream's scripts into Redis as a library of functions, which clients in any
language call with FCALL: to schedule without duplicates, retry with a delay, dead-letter,
release, extend. Nobody needs them: plain ZADD, XREADGROUP and XACK stay enough, and Go
clients and bridges use none of them. docs/PROTOCOL.md, section 17, says how they are called.`,
		Example: `  duestream functions load
  duestream functions show
  duestream functions dump | redis-cli -x FUNCTION LOAD`,
		Args: cobra.NoArgs,
		RunE: help,
	}
	cmd.AddCommand(a.functionsLoad(), a.functionsShow(), a.functionsDelete(), a.functionsDump())
	return cmd
}

func (a *app) functionsLoad() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Load the functions on the server, or on every master of a cluster",
		Long: `Loads the functions on the server, or on every master of a cluster. Redis saves them with
its data and replicates them. Load them again after an upgrade of duestream, and when a
master has joined the cluster. Where they are already, nothing is done; older ones are
replaced, in one step, and calls go on meanwhile. A library called duestream that is not
ours, or is of a newer release, is left alone, and then nothing is changed on any server.`,
		Example: "  duestream functions load\n  duestream functions load --json",
		Args:    cobra.NoArgs,
		RunE: a.do(func(ctx context.Context, _ []string) error {
			return a.onServers(ctx, func(r *bridge.Redis) ([]admin.Library, error) {
				return admin.New(r, "").LoadFunctions(ctx, version, force)
			}, func(l admin.Library) string {
				switch l.Did {
				case "":
					return "already there  " + libraryVersion(l.Release, l.Source)
				case "replaced":
					return "replaced  " + libraryVersion(l.Release, l.Source) + " → " + libraryVersion(version, admin.FunctionsSource())
				}
				return l.Did + "  " + libraryVersion(version, admin.FunctionsSource())
			})
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "also replace a library that is newer, or not ours")
	a.jsonFlag(cmd)
	return cmd
}

func (a *app) functionsDelete() *cobra.Command {
	var force bool
	var agreed *consent
	cmd := &cobra.Command{
		Use:   "delete",
		Short: "Delete the functions from the server, or from every master of a cluster",
		Long: `Deletes the functions from the server, or from every master of a cluster. Clients that call
them get an error from then on; nothing else changes, and no message is touched. It asks on
a terminal; elsewhere it needs --yes.`,
		Example: "  duestream functions delete\n  duestream functions delete --yes",
		Args:    cobra.NoArgs,
		RunE: a.do(func(ctx context.Context, _ []string) error {
			if err := agreed.possible(a, "the functions from every server"); err != nil {
				return err
			}
			if err := agreed.ask(ctx, a, "Delete the functions from every server? Clients that call them will fail."); err != nil {
				return err
			}
			return a.onServers(ctx, func(r *bridge.Redis) ([]admin.Library, error) {
				return admin.New(r, "").DeleteFunctions(ctx, version, force)
			}, func(l admin.Library) string {
				if l.Did == "" {
					return "not there"
				}
				return l.Did + "  " + libraryVersion(l.Release, l.Source)
			})
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "also delete a library that is not ours")
	agreed = destroys(cmd)
	a.jsonFlag(cmd)
	return cmd
}

// onServers changes all servers, and says what was done on each.
func (a *app) onServers(ctx context.Context, change func(*bridge.Redis) ([]admin.Library, error), what func(admin.Library) string) error {
	r, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	rows, err := change(r)
	failed := failures(rows)
	if err != nil && failed == len(rows) || errors.Is(err, admin.ErrForeignFunctions) || errors.Is(err, admin.ErrNewerFunctions) {
		return explainFunctions(err)
	}
	printed := a.print(a.librariesJSON(rows, false), func() {
		var lines [][]string
		for _, l := range rows {
			if l.Err == nil {
				lines = append(lines, []string{l.Server, what(l)})
			}
		}
		table(a.out, lines)
	})
	return errors.Join(printed, a.partly(rows, failed))
}

func (a *app) functionsShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show which functions each server has, and how they are called",
		Long: `Shows which version of the functions each server has, compared with that of this program,
and their keys and arguments. What stands in brackets is repeated for every item.

  absent   no library is there       current  it does the same as ours
  older    load replaces it          newer    of a newer release than this program
  other    ours, of another build    foreign  a library called duestream that is not ours`,
		Example: "  duestream functions show\n  duestream functions show --json",
		Args:    cobra.NoArgs,
		RunE: a.do(func(ctx context.Context, _ []string) error {
			r, err := a.connect(ctx)
			if err != nil {
				return err
			}
			defer r.Close()
			rows := admin.New(r, "").ShowFunctions(ctx, version)
			failed := failures(rows)
			if failed == len(rows) {
				var err error
				for _, l := range rows {
					err = errors.Join(err, l.Err)
				}
				return explainFunctions(err)
			}
			printed := a.print(a.librariesJSON(rows, true), func() { a.printLibraries(rows) })
			return errors.Join(printed, a.partly(rows, failed))
		}),
	}
	a.jsonFlag(cmd)
	return cmd
}

func (a *app) printLibraries(rows []admin.Library) {
	lines := [][]string{{"SERVER", "ROLE", "LIBRARY", "RELEASE", "SOURCE"}}
	for _, l := range rows {
		lines = append(lines, []string{l.Server, orDash(l.Role), orDash(string(l.State)), orDash(oneLine(l.Release, 40)), orDash(oneLine(l.Source, 40))})
	}
	lines = append(lines, []string{"this program", "-", "-", version, admin.FunctionsSource()})
	table(a.out, lines)
	fmt.Fprintln(a.out)
	lines = [][]string{{"FUNCTION", "KEYS", "ARGUMENTS"}}
	for _, f := range admin.Functions() {
		args := f.Args
		if len(f.Each) > 0 {
			args = append(args, "["+strings.Join(f.Each, " ")+"]…")
		}
		lines = append(lines, []string{f.Name, strings.Join(f.Keys, " "), strings.Join(args, " ")})
	}
	table(a.out, lines)
}

func (a *app) functionsDump() *cobra.Command {
	return &cobra.Command{
		Use:   "dump",
		Short: "Print the library as Lua, to read it or to load it with redis-cli",
		Long: `Prints the library as Lua, to read it or to load it with redis-cli. Redis is not touched. On
a cluster each master needs it; FUNCTION LOAD REPLACE takes it over an older one.`,
		Example: "  duestream functions dump | less\n  duestream functions dump | redis-cli -x FUNCTION LOAD REPLACE",
		Args:    cobra.NoArgs,
		RunE: a.do(func(context.Context, []string) error {
			_, err := fmt.Fprint(a.out, admin.FunctionsLibrary(version))
			return err
		}),
	}
}

// libraryRow is one server as JSON.
type libraryRow struct {
	admin.Library
	Error string `json:"error,omitempty"`
}

// librariesReport is what load, delete and show print as JSON. Release and source are those of this program.
type librariesReport struct {
	Release   string           `json:"release"`
	Source    string           `json:"source"`
	Servers   []libraryRow     `json:"servers"`
	Functions []admin.Function `json:"functions,omitempty"`
}

func (a *app) librariesJSON(rows []admin.Library, functions bool) librariesReport {
	report := librariesReport{Release: version, Source: admin.FunctionsSource(), Servers: []libraryRow{}}
	for _, l := range rows {
		row := libraryRow{Library: l}
		if l.Err != nil {
			row.Error = withoutPackages(l.Err.Error())
		}
		report.Servers = append(report.Servers, row)
	}
	if functions {
		report.Functions = admin.Functions()
	}
	return report
}

func libraryVersion(release, source string) string {
	if source == "" {
		return "(not ours)"
	}
	return fmt.Sprintf("%s (%s)", orDash(oneLine(release, 40)), oneLine(source, 40))
}

func failures(rows []admin.Library) (n int) {
	for _, l := range rows {
		if l.Err != nil {
			n++
		}
	}
	return n
}

// partly says what failed on which server, when the others are done.
func (a *app) partly(rows []admin.Library, failed int) error {
	if failed == 0 {
		return nil
	}
	for _, l := range rows {
		if l.Err != nil {
			a.note("duestream: %s", withoutPackages(l.Err.Error()))
		}
	}
	return fmt.Errorf("%w: failed on %d of %s, done on the others; repeat the command", errPartly, failed, counted(len(rows), "server"))
}

// errFunctionsDenied is in the chain of an error that says that the user may not load functions, or look at them.
var errFunctionsDenied = errors.New("functions are denied")

type functionsDenied struct{ error }

func (e functionsDenied) Unwrap() error        { return e.error }
func (e functionsDenied) Is(target error) bool { return target == errFunctionsDenied }

func explainFunctions(err error) error {
	if errors.Is(err, bridge.ErrDenied) {
		return functionsDenied{err}
	}
	return err
}
