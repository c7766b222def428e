package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
)

const (
	completionPatience = time.Second // that the shell waits for names; without an answer there are none
	completionMost     = 50          // letters or IDs that are offered
)

type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// complete gives all commands below cmd the completions that the names of their arguments and flags call for, unless they have
// their own.
func (a *app) complete(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		a.complete(sub)
	}
	if cmd.ValidArgsFunction == nil && len(cmd.ValidArgs) == 0 && !cmd.HasSubCommands() {
		cmd.ValidArgsFunction = a.completeArgs(usageArgsOf(cmd))
	}
	for flag, complete := range map[string]completion{
		"group":  a.completeGroups,
		"to":     a.completeGroups,
		"reason": cobra.FixedCompletions(deadReasons, cobra.ShellCompDirectiveNoFileComp),
	} {
		if _, has := cmd.GetFlagCompletionFunc(flag); !has && cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, complete)
		}
	}
}

// argKind is what is known of an argument by its name in the usage.
type argKind struct {
	check func(text string) error
	offer func(ctx context.Context, op *admin.Admin, queue string) []string // of the queue that is named first; nil: nothing
}

var argKinds = map[string]argKind{
	"<queue>":  {check: admin.CheckQueue},
	"<group>":  {admin.CheckGroup, groupNames},
	"<letter>": {checkLetter, newestLetters},
	"<id>":     {admin.CheckID, nextIDs},
	"<token>":  {check: admin.CheckToken},
	"<name>":   {admin.CheckRecurrence, recurrenceNames},
}

// offerValues has a shell offer the values of a flag.
func offerValues(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// completeArgs completes arguments by their kinds.
func (a *app) completeArgs(names usageArgs) completion {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		const none = cobra.ShellCompDirectiveNoFileComp
		kind := names.kind(len(args))
		switch {
		case names.command && len(args) > 0, kind == "<file>":
			return nil, cobra.ShellCompDirectiveDefault // another program's, or a file
		case kind == "<queue>":
			return a.completeQueues(cmd, args, typed)
		case kind == "<queues>":
			before := typed[:strings.LastIndex(typed, ",")+1]
			offers, _ := a.completeQueues(cmd, strings.Split(before, ","), typed)
			for i := range offers {
				offers[i] = before + offers[i]
			}
			return offers, none
		case len(args) == 0: // the others are those of the queue that is named first
			return nil, none
		case kind == "<setting>=<value>":
			return settingsToComplete(typed), none | cobra.ShellCompDirectiveNoSpace
		}
		return without(a.offers(cmd, kind, args), args[1:]), none
	}
}

// offers returns the names of a kind in the queue that is named first. Without one there are none.
func (a *app) offers(cmd *cobra.Command, kind string, args []string) []string {
	offer := argKinds[kind].offer
	if offer == nil || len(args) == 0 || admin.CheckQueue(args[0]) != nil {
		return nil
	}
	return a.ask(cmd.Context(), func(ctx context.Context, op *admin.Admin) []string { return offer(ctx, op, args[0]) })
}

// without removes names that were typed already. What follows a tab in an offer is its description.
func without(all, these []string) []string {
	return slices.DeleteFunc(all, func(one string) bool {
		name, _, _ := strings.Cut(one, "\t")
		return slices.Contains(these, name)
	})
}

// settingsToComplete offers names of settings, and the values of those that have few.
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

// deadReasons are the reasons that a dead letter may have.
var deadReasons = admin.Reasons()

// ask returns what look finds within a second; nothing when it fails, and no error: the user is in the middle of a line.
func (a *app) ask(ctx context.Context, look func(context.Context, *admin.Admin) []string) []string {
	ctx, cancel := context.WithTimeout(ctx, completionPatience)
	defer cancel()
	found := make(chan []string, 1)
	go func() {
		_ = a.operate(ctx, func(op *admin.Admin) error {
			found <- look(ctx, op)
			return nil
		})
		close(found)
	}()
	select {
	case names := <-found:
		return names
	case <-ctx.Done(): // also when something does not heed ctx
		return nil
	}
}

// completeQueues offers the names of the queues that the bridges know, but for those that are named already.
func (a *app) completeQueues(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return without(a.ask(cmd.Context(), queueNames), args), cobra.ShellCompDirectiveNoFileComp
}

// completeGroups offers the groups of the queue that is named already.
func (a *app) completeGroups(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.offers(cmd, "<group>", args), cobra.ShellCompDirectiveNoFileComp
}

func queueNames(ctx context.Context, op *admin.Admin) []string {
	queues, _ := op.Queues(ctx)
	return queues
}

func groupNames(ctx context.Context, op *admin.Admin, queue string) (names []string) {
	samples, _ := op.Watcher(queue).Look(ctx)
	for _, q := range samples {
		for _, g := range q.Groups {
			names = append(names, g.Name)
		}
	}
	return names
}

// newestLetters offers the newest dead letters, each with the ID of its message and the reason.
func newestLetters(ctx context.Context, op *admin.Admin, queue string) (names []string) {
	filter := admin.LetterFilter{Newest: true, Limit: completionMost}
	for l, err := range op.DeadLetters().List(ctx, queue, filter) {
		if err != nil {
			break
		}
		names = append(names, l.Letter+"\t"+human.OneLine(l.ID, 40)+" "+l.Reason)
	}
	return names
}

// nextIDs offers messages that are due next.
func nextIDs(ctx context.Context, op *admin.Admin, queue string) (ids []string) {
	next, _ := op.Peek(ctx, queue, completionMost, false)
	for _, due := range next.Next {
		ids = append(ids, due.ID)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
