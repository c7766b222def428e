package cli

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// usageArgs are the arguments that a command's usage line names, like <queue> [<letter>...]. The names decide how many
// arguments there may be, how each is checked, and what a shell offers for it.
type usageArgs struct {
	kinds    []string // "<queue>", in order
	required int      // number of arguments that must be given
	repeated bool     // the last argument may be repeated
	command  bool     // the command line of another program follows --
}

func usageArgsOf(cmd *cobra.Command) (u usageArgs) {
	words := strings.Fields(cmd.Use)[1:]
	u.command = slices.Contains(words, "--")
	for _, word := range words {
		if strings.HasPrefix(word, "-") || strings.HasPrefix(word, "(") { // flags follow the arguments
			break
		}
		if kind := strings.Trim(word, "[]."); strings.HasPrefix(kind, "<") {
			u.kinds, u.repeated = append(u.kinds, kind), strings.Contains(word, "...")
			if !strings.HasPrefix(word, "[") {
				u.required++
			}
		}
	}
	return u
}

// kind returns the usage's name for the argument at index i, or "" if the usage has no such argument.
func (u usageArgs) kind(i int) string {
	if u.repeated {
		i = min(i, len(u.kinds)-1)
	}
	if i >= len(u.kinds) {
		return ""
	}
	return u.kinds[i]
}

// number returns a check that refuses too few or too many arguments.
func (u usageArgs) number() cobra.PositionalArgs {
	if u.repeated {
		return NumberOfArgs(u.required, math.MaxInt)
	}
	return NumberOfArgs(u.required, len(u.kinds))
}

// NumberOfArgs is like [cobra.RangeArgs], but its error quotes the usage of the command.
func NumberOfArgs(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= most {
			return nil
		}
		_, takes, hasArgs := strings.Cut(cmd.Use, " ")
		if !hasArgs {
			takes = "no arguments"
		}
		return fmt.Errorf("%s takes %s, and was given %s", cmd.CommandPath(), takes, human.Counted(len(args), "argument"))
	}
}

// check refuses arguments that are not valid names of their kind.
func (u usageArgs) check(args []string) error {
	var errs []error
	for i, arg := range args {
		if check := argKinds[u.kind(i)].check; check != nil {
			errs = append(errs, check(arg))
		}
	}
	return errors.Join(errs...)
}

// queues returns the arguments that are names of queues.
func (u usageArgs) queues(args []string) (queues []string) {
	for i, arg := range args {
		if u.kind(i) == "<queue>" {
			queues = append(queues, arg)
		}
	}
	return queues
}

var letterName = regexp.MustCompile(`^([1-9][0-9]{0,2}/)?[0-9]+-[0-9]+$`)

func checkLetter(letter string) error {
	if letterName.MatchString(letter) {
		return nil
	}
	return usage.Errorf("letter %q: must be <milliseconds>-<sequence>, or <partition>/<milliseconds>-<sequence>, "+
		"as `duestream dead list` prints it", letter)
}

// CheckGroup refuses a text that is not a valid name of a group. "" stands for no group, and is valid.
func CheckGroup(group string) error {
	if group == "" {
		return nil
	}
	return admin.CheckGroup(group)
}

// GroupCheck returns CheckGroup as the check of a command.
func GroupCheck(group *string) Checks { return func([]string) error { return CheckGroup(*group) } }
