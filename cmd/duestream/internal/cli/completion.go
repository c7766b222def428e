package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/internal/policy"
)

// completionTimeout is how long a shell waits for names. After that time it offers none.
const completionTimeout = time.Second

// MostOffers is the largest number of letters or IDs that a shell offers.
const MostOffers = 50

type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// Complete adds completions to cmd and all its subcommands. The names of arguments and flags decide which values a
// shell offers. A command that has its own completions keeps them.
func Complete(a *App, cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		Complete(a, sub)
	}
	if cmd.ValidArgsFunction == nil && len(cmd.ValidArgs) == 0 && !cmd.HasSubCommands() {
		cmd.ValidArgsFunction = completeArgs(a, usageArgsOf(cmd))
	}
	for flag, values := range map[string]completion{
		"group":  completeGroups(a),
		"to":     completeGroups(a),
		"reason": cobra.FixedCompletions(admin.Reasons(), cobra.ShellCompDirectiveNoFileComp),
	} {
		if _, has := cmd.GetFlagCompletionFunc(flag); !has && cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, values)
		}
	}
}

// argKind is the check and the completion of an argument, found by its name in the usage.
type argKind struct {
	check func(text string) error

	// offer returns the names in queue, which is the first argument. If offer is nil, a shell offers nothing.
	offer func(ctx context.Context, op *admin.Admin, queue string) []string
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
			complete := typed[:strings.LastIndex(typed, ",")+1] // the queues before the one that is being typed
			offers, _ := CompleteQueues(a)(cmd, strings.Split(complete, ","), typed)
			for i := range offers {
				offers[i] = complete + offers[i]
			}
			return offers, none
		case len(args) == 0: // for the other kinds, the first argument is the queue
			return nil, none
		case kind == "<setting>=<value>":
			return settingsToComplete(typed), none | cobra.ShellCompDirectiveNoSpace
		}
		return without(offersOf(a, cmd, kind, args), args[1:]), none
	}
}

// offersOf returns the names of a kind in the queue of the first argument, and nothing without a queue.
func offersOf(a *App, cmd *cobra.Command, kind string, args []string) []string {
	offer := argKinds[kind].offer
	if offer == nil || len(args) == 0 || admin.CheckQueue(args[0]) != nil {
		return nil
	}
	return AskForNames(cmd.Context(), a, func(ctx context.Context, op *admin.Admin) []string {
		return offer(ctx, op, args[0])
	})
}

// without removes the offers whose names were typed already. In an offer, the description follows a tab.
func without(offers, typed []string) []string {
	return slices.DeleteFunc(offers, func(offer string) bool {
		name, _, _ := strings.Cut(offer, "\t")
		return slices.Contains(typed, name)
	})
}

// settingsToComplete offers the names of settings, and the values of switches. The empty value of a switch takes the
// setting back to its default.
func settingsToComplete(typed string) (offers []string) {
	word, _, hasValue := strings.Cut(typed, "=")
	if s, known := settings.ByWord(word); known && hasValue && s.Kind == policy.Switch {
		return []string{word + "=true", word + "=false", word + "="}
	}
	for _, name := range settings.Words() {
		offers = append(offers, name+"=")
	}
	return offers
}

// AskForNames returns the names that look finds within a second. If look fails, it returns no names and no error,
// because the user is in the middle of a command line.
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
	case <-ctx.Done(): // without this case, a call that ignores ctx would block the shell
		return nil
	}
}

// CompleteQueues offers the queues that the bridges know, without the queues that were typed already.
func CompleteQueues(a *App) completion {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return without(AskForNames(cmd.Context(), a, queueNames), args), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeGroups offers the groups of the queue of the first argument.
func completeGroups(a *App) completion {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return offersOf(a, cmd, "<group>", args), cobra.ShellCompDirectiveNoFileComp
	}
}
