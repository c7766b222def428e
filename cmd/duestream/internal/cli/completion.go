package cli

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
)

// completionTimeout is how long a shell waits for names. Then it offers none.
const completionTimeout = time.Second

// MostOffers is how many letters or IDs are offered.
const MostOffers = 50

type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// Complete adds completions to all commands below cmd. The names of their arguments and flags decide which. A command
// that has its own completions keeps them.
func Complete(a *App, cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		Complete(a, sub)
	}
	if cmd.ValidArgsFunction == nil && len(cmd.ValidArgs) == 0 && !cmd.HasSubCommands() {
		cmd.ValidArgsFunction = completeArgs(a, usageArgsOf(cmd))
	}
	for flag, complete := range map[string]completion{
		"group":  completeGroups(a),
		"to":     completeGroups(a),
		"reason": cobra.FixedCompletions(admin.Reasons(), cobra.ShellCompDirectiveNoFileComp),
	} {
		if _, has := cmd.GetFlagCompletionFunc(flag); !has && cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, complete)
		}
	}
}

// argKind is the check and the completion of an argument, found by its name in the usage.
type argKind struct {
	check func(text string) error
	offer func(ctx context.Context, op *admin.Admin, queue string) []string // in the queue that stands first; nil: none
}

var argKinds = map[string]argKind{
	"<queue>":  {check: admin.CheckQueue},
	"<group>":  {admin.CheckGroup, groupNames},
	"<letter>": {checkLetter, newestLetters},
	"<id>":     {admin.CheckID, nextIDs},
	"<token>":  {check: admin.CheckToken},
	"<name>":   {admin.CheckRecurrence, recurrenceNames},
}

// OfferValues makes a shell offer the values of a flag.
func OfferValues(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// completeArgs returns the completion of arguments by their kinds.
func completeArgs(a *App, names usageArgs) completion {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		const none = cobra.ShellCompDirectiveNoFileComp
		kind := names.kind(len(args))
		switch {
		case names.command && len(args) > 0, kind == "<file>":
			return nil, cobra.ShellCompDirectiveDefault // a file, or an argument of another program
		case kind == "<queue>":
			return CompleteQueues(a)(cmd, args, typed)
		case kind == "<queues>":
			before := typed[:strings.LastIndex(typed, ",")+1]
			offers, _ := CompleteQueues(a)(cmd, strings.Split(before, ","), typed)
			for i := range offers {
				offers[i] = before + offers[i]
			}
			return offers, none
		case len(args) == 0: // the other kinds need the queue that stands first
			return nil, none
		case kind == "<setting>=<value>":
			return settingsToComplete(typed), none | cobra.ShellCompDirectiveNoSpace
		}
		return without(offersOf(a, cmd, kind, args), args[1:]), none
	}
}

// offersOf returns the names of a kind in the queue that stands first, and nothing without a queue.
func offersOf(a *App, cmd *cobra.Command, kind string, args []string) []string {
	offer := argKinds[kind].offer
	if offer == nil || len(args) == 0 || admin.CheckQueue(args[0]) != nil {
		return nil
	}
	return AskForNames(cmd.Context(), a, func(ctx context.Context, op *admin.Admin) []string {
		return offer(ctx, op, args[0])
	})
}

// without removes the names that were typed already. In an offer, the description follows a tab.
func without(all, these []string) []string {
	return slices.DeleteFunc(all, func(one string) bool {
		name, _, _ := strings.Cut(one, "\t")
		return slices.Contains(these, name)
	})
}

// settingsToComplete offers the names of settings, and the values of switches.
func settingsToComplete(typed string) (offers []string) {
	for _, name := range []string{"held", "held_workers", "free_retries"} {
		if strings.HasPrefix(typed, name+"=") {
			return []string{name + "=true", name + "=false", name + "="}
		}
	}
	for _, name := range slices.Sorted(maps.Values(settings.PolicyFields)) {
		offers = append(offers, name+"=")
	}
	return offers
}

// AskForNames returns the names that look finds within a second. If it fails it returns none, and no error: the user
// is in the middle of a line.
func AskForNames(ctx context.Context, a *App, look func(context.Context, *admin.Admin) []string) []string {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	found := make(chan []string, 1)
	go func() {
		_ = a.UseAdmin(ctx, func(op *admin.Admin) error {
			found <- look(ctx, op)
			return nil
		})
		close(found)
	}()
	select {
	case names := <-found:
		return names
	case <-ctx.Done(): // also if a call ignores ctx
		return nil
	}
}

// CompleteQueues offers the queues that the bridges know, without those that were typed already.
func CompleteQueues(a *App) completion {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return without(AskForNames(cmd.Context(), a, queueNames), args), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeGroups offers the groups of the queue that stands first.
func completeGroups(a *App) completion {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return offersOf(a, cmd, "<group>", args), cobra.ShellCompDirectiveNoFileComp
	}
}
