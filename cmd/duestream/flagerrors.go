package main

import (
	"fmt"
	"regexp"
	"strings"
)

// flagTexts are the errors of the flag libraries that a user would have to know Go to read, and what is said instead.
var flagTexts = []struct {
	theirs *regexp.Regexp
	ours   func(parts []string) string
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
}

// listFlags turns "file id" into "--file and --id".
func listFlags(names string) string {
	return "--" + strings.Join(strings.Fields(names), " and --")
}

// plainFlagError says in plain words what is wrong with the flags.
func plainFlagError(text string) string {
	for _, t := range flagTexts {
		if parts := t.theirs.FindStringSubmatch(text); parts != nil {
			return t.ours(parts)
		}
	}
	return text
}
