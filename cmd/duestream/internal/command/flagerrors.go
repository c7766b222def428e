package command

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// flagTexts replaces errors of the flag libraries that only a Go programmer understands. plain gets the submatches of
// the pattern.
var flagTexts = []struct {
	pattern *regexp.Regexp
	plain   func(parts []string) string
}{
	{
		regexp.MustCompile(`^if any flags in the group \[.*\] are set none of the others can be; \[(.*)\] were all set$`),
		func(parts []string) string { return listFlags(parts[1]) + " exclude each other" },
	},
	{
		regexp.MustCompile(`^at least one of the flags in the group \[(.*)\] is required$`),
		func(parts []string) string { return "one of " + listFlags(parts[1]) + " is required" },
	},
	{
		regexp.MustCompile(`^required flag\(s\) (.*) not set$`),
		func(parts []string) string {
			names := strings.NewReplacer(`"`, "", ",", "").Replace(parts[1])
			if strings.Contains(names, " ") {
				return listFlags(names) + " are required"
			}
			return listFlags(names) + " is required"
		},
	},
	{
		regexp.MustCompile(`(?s)^invalid argument (".*") for "(?:-\w, )?(--[\w-]+)" flag: strconv\.Parse(Int|Uint|Float|Bool): .*$`),
		func(parts []string) string {
			must := map[string]string{
				"Int": "a whole number", "Uint": "a whole number, 0 or more", "Float": "a number", "Bool": "true or false",
			}[parts[3]]
			return fmt.Sprintf("%s %s: must be %s", parts[2], parts[1], must)
		},
	},
	{
		regexp.MustCompile(`(?s)^invalid argument (".*") for "(?:-\w, )?(--[\w-]+)" flag: (must .*)$`),
		func(parts []string) string { return parts[2] + " " + parts[1] + ": " + parts[3] },
	},
	{
		regexp.MustCompile(`(?s)^invalid argument ".*" for "(?:-\w, )?(--[\w-]+)" flag: (.*)$`),
		func(parts []string) string { return parts[1] + ": " + parts[2] }, // the reason quotes the value
	},
}

// unknownCommand returns the word in the place of a subcommand, and the parent command, if no subcommand has that name.
// Cobra's own error would be about the first flag after the word that the parent command does not know.
func unknownCommand(root *cobra.Command, args []string) (word string, parent *cobra.Command) {
	parent, rest, err := root.Find(args)
	if err != nil || !parent.HasAvailableSubCommands() {
		return "", nil
	}
	for len(rest) > 0 {
		word, rest = rest[0], rest[1:]
		if !strings.HasPrefix(word, "-") {
			if slices.ContainsFunc(parent.Commands(), func(c *cobra.Command) bool { return c.Name() == word }) {
				return "", nil
			}
			return word, parent
		}
		name, _, hasValue := strings.Cut(strings.TrimPrefix(word, "--"), "=")
		flag := parent.Flag(name)
		if flag == nil {
			return "", nil
		}
		if !hasValue && flag.NoOptDefVal == "" && len(rest) > 0 {
			rest = rest[1:] // the value of the flag
		}
	}
	return "", nil
}

// listFlags turns "file id" into "--file and --id".
func listFlags(names string) string {
	return "--" + strings.Join(strings.Fields(names), " and --")
}

// plainFlagError rewrites an error about flags in plain words.
func plainFlagError(text string) string {
	for _, t := range flagTexts {
		if parts := t.pattern.FindStringSubmatch(text); parts != nil {
			return t.plain(parts)
		}
	}
	return text
}
