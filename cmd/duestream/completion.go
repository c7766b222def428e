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

// complete gives all commands below cmd the completions that the names of their arguments and flags call for, unless they have their own.
func (a *app) complete(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		a.complete(sub)
	}
	if cmd.ValidArgsFunction == nil && len(cmd.ValidArgs) == 0 && !cmd.HasSubCommands() {
		cmd.ValidArgsFunction = a.completeArgs(strings.Fields(cmd.Use)[1:])
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

// completeArgs completes arguments by their names in the usage: <queue>, <letter>, <id>, <setting>=<value>.
func (a *app) completeArgs(usage []string) completion {
	var kinds []string
	repeated := false // the last one
	for _, word := range usage {
		if strings.HasPrefix(word, "-") || strings.HasPrefix(word, "(") { // from here on it is about flags
			break
		}
		if name := strings.Trim(word, "[]."); strings.HasPrefix(name, "<") {
			kinds, repeated = append(kinds, name), strings.Contains(word, "...")
		}
	}
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		const none = cobra.ShellCompDirectiveNoFileComp
		if slices.Contains(usage, "--") && len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault // another program's
		}
		if len(args) >= len(kinds) && !repeated {
			return nil, none
		}
		kind := kinds[min(len(args), len(kinds)-1)]
		if kind == "<queue>" {
			return a.completeQueues(cmd, args, typed)
		}
		if len(args) == 0 { // the others are those of the queue that is named first
			return nil, none
		}
		switch kind {
		case "<group>":
			return a.completeGroups(cmd, args, typed)
		case "<letter>":
			return without(a.completeLetters(cmd.Context(), args[0]), args[1:]), none
		case "<id>":
			return without(a.completeIDs(cmd.Context(), args[0]), args[1:]), none
		case "<setting>=<value>":
			return settingsToComplete(typed), none | cobra.ShellCompDirectiveNoSpace
		}
		return nil, none
	}
}

// without drops what was typed already. Behind a tab is a description.
func without(all, these []string) []string {
	return slices.DeleteFunc(all, func(one string) bool {
		name, _, _ := strings.Cut(one, "\t")
		return slices.Contains(these, name)
	})
}

// settingsToComplete offers names of settings, and the values of those that have few.
func settingsToComplete(typed string) (offers []string) {
	if strings.HasPrefix(typed, "held=") {
		return []string{"held=true", "held=false", "held="}
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
		op, done, err := a.admin(ctx)
		if err != nil {
			found <- nil
			return
		}
		found <- look(ctx, op)
		done()
	}()
	select {
	case names := <-found:
		return names
	case <-ctx.Done(): // also when something does not heed ctx
		return nil
	}
}

// completeQueues offers the names of the queues that the bridges know.
func (a *app) completeQueues(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return without(a.ask(cmd.Context(), func(ctx context.Context, op *admin.Admin) []string {
		queues, _ := op.Queues(ctx)
		return queues
	}), args), cobra.ShellCompDirectiveNoFileComp
}

// completeQueue offers them for the first argument.
func (a *app) completeQueue(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeQueues(cmd, args, typed)
}

// completeGroups offers the groups of the queue that is named already.
func (a *app) completeGroups(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 || admin.CheckQueue(args[0]) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.ask(cmd.Context(), func(ctx context.Context, op *admin.Admin) (names []string) {
		glances, _ := op.Watcher(args[0]).Look(ctx)
		for _, q := range glances {
			for _, g := range q.Groups {
				names = append(names, g.Name)
			}
		}
		return names
	}), cobra.ShellCompDirectiveNoFileComp
}

// completeLetters offers the newest dead letters.
func (a *app) completeLetters(ctx context.Context, queue string) []string {
	if admin.CheckQueue(queue) != nil {
		return nil
	}
	return a.ask(ctx, func(ctx context.Context, op *admin.Admin) (names []string) {
		filter := admin.LetterFilter{Newest: true, Limit: completionMost}
		for l, err := range op.DeadLetters().List(ctx, queue, filter) {
			if err != nil {
				break
			}
			names = append(names, l.Letter+"\t"+human.OneLine(l.ID, 40)+" "+l.Reason)
		}
		return names
	})
}

// completeIDs offers messages that are due next.
func (a *app) completeIDs(ctx context.Context, queue string) []string {
	if admin.CheckQueue(queue) != nil {
		return nil
	}
	return a.ask(ctx, func(ctx context.Context, op *admin.Admin) []string {
		next, _ := op.Peek(ctx, queue, completionMost, false)
		var ids []string
		for _, due := range next.Next {
			ids = append(ids, due.ID)
		}
		slices.Sort(ids)
		return slices.Compact(ids)
	})
}
