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

// completionPatience is how long a shell waits for names. Then it offers none.
const completionPatience = time.Second

// completionMost is how many letters or IDs are offered.
const completionMost = 50

type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// complete adds completions to all commands below cmd. The names of their arguments and flags decide which. A command
// that has its own completions keeps them.
func (a *app) complete(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		a.complete(sub)
	}
	if cmd.ValidArgsFunction == nil && len(cmd.ValidArgs) == 0 && !cmd.HasSubCommands() {
		cmd.ValidArgsFunction = a.completeArgs(usageArgsOf(cmd))
	}
	for flag, complete := range map[string]completion{
		"group":  a.completeGroups(),
		"to":     a.completeGroups(),
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

// offerValues makes a shell offer the values of a flag.
func offerValues(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// completeArgs returns the completion of arguments by their kinds.
func (a *app) completeArgs(names usageArgs) completion {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		const none = cobra.ShellCompDirectiveNoFileComp
		kind := names.kind(len(args))
		switch {
		case names.command && len(args) > 0, kind == "<file>":
			return nil, cobra.ShellCompDirectiveDefault // a file, or an argument of another program
		case kind == "<queue>":
			return a.completeQueues()(cmd, args, typed)
		case kind == "<queues>":
			before := typed[:strings.LastIndex(typed, ",")+1]
			offers, _ := a.completeQueues()(cmd, strings.Split(before, ","), typed)
			for i := range offers {
				offers[i] = before + offers[i]
			}
			return offers, none
		case len(args) == 0: // the other kinds need the queue that stands first
			return nil, none
		case kind == "<setting>=<value>":
			return settingsToComplete(typed), none | cobra.ShellCompDirectiveNoSpace
		}
		return without(a.offers(cmd, kind, args), args[1:]), none
	}
}

// offers returns the names of a kind in the queue that stands first, and nothing without a queue.
func (a *app) offers(cmd *cobra.Command, kind string, args []string) []string {
	offer := argKinds[kind].offer
	if offer == nil || len(args) == 0 || admin.CheckQueue(args[0]) != nil {
		return nil
	}
	return a.ask(cmd.Context(), func(ctx context.Context, op *admin.Admin) []string { return offer(ctx, op, args[0]) })
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

// ask returns the names that look finds within a second. If it fails it returns none, and no error: the user is in
// the middle of a line.
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
	case <-ctx.Done(): // also if a call ignores ctx
		return nil
	}
}

// completeQueues offers the queues that the bridges know, without those that were typed already.
func (a *app) completeQueues() completion {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return without(a.ask(cmd.Context(), queueNames), args), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeGroups offers the groups of the queue that stands first.
func (a *app) completeGroups() completion {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return a.offers(cmd, "<group>", args), cobra.ShellCompDirectiveNoFileComp
	}
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

// nextIDs offers the IDs of the messages that are due next.
func nextIDs(ctx context.Context, op *admin.Admin, queue string) (ids []string) {
	next, _ := op.Peek(ctx, queue, completionMost, false)
	for _, due := range next.Next {
		ids = append(ids, due.ID)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
