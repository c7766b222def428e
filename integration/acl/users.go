package acl

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// rule is one part of what a user may: some commands on some keys. The first one of a user is its own, the others are selectors.
type rule struct {
	patterns []string
	commands []string // "XGROUP CREATE"
}

var setUser = regexp.MustCompile(`(?m)^> (ACL SETUSER (\S+) on >\S+ (.*))$`)

// documented is a user of docs/OPERATIONS.md.
type documented struct {
	line  string // that makes it
	rules []rule
}

// documentedUsers reads the users out of a text.
func documentedUsers(text string) map[string]documented {
	users := map[string]documented{}
	for _, m := range setUser.FindAllStringSubmatch(text, -1) {
		u := documented{line: m[1]}
		own, rest, _ := strings.Cut(m[3], "(")
		u.rules = append(u.rules, parseRule(own))
		for part := range strings.SplitSeq(rest, "(") {
			if part != "" {
				u.rules = append(u.rules, parseRule(strings.TrimRight(part, ") ")))
			}
		}
		users[m[2]] = u
	}
	return users
}

func parseRule(text string) (r rule) {
	for word := range strings.FieldsSeq(text) {
		if _, pattern, ok := strings.Cut(word, "~"); ok {
			r.patterns = append(r.patterns, pattern)
		} else if command, ok := strings.CutPrefix(word, "+"); ok && !strings.HasPrefix(command, "@") {
			r.commands = append(r.commands, strings.ToUpper(strings.ReplaceAll(command, "|", " ")))
		}
	}
	return r
}

// use is a command that a program sends, for a key; why tells how it comes to.
type use struct{ command, key, why string }

// covers reports whether the rule is what allows the use.
func (r rule) covers(u use) bool {
	return slices.Contains(r.commands, u.command) && (u.key == "" || slices.ContainsFunc(r.patterns, func(p string) bool { return matches(p, u.key) }))
}

func matches(pattern, key string) bool {
	ok, _ := path.Match(strings.NewReplacer("{", `\{`, "}", `\}`).Replace(pattern), key)
	return ok
}

// superfluous says what of a user's rules no use needs.
func superfluous(u documented, uses []use) (found []string) {
	for _, r := range u.rules {
		for _, command := range r.commands {
			one := rule{r.patterns, []string{command}}
			if !slices.ContainsFunc(uses, one.covers) {
				found = append(found, fmt.Sprintf("+%s on %s", strings.ToLower(strings.ReplaceAll(command, " ", "|")), strings.Join(r.patterns, " ")))
			}
		}
		for _, pattern := range r.patterns {
			one := rule{[]string{pattern}, r.commands}
			if !slices.ContainsFunc(uses, func(u use) bool { return u.key != "" && one.covers(u) }) {
				found = append(found, fmt.Sprintf("~%s for +%s", pattern, strings.ToLower(strings.Join(r.commands, " +"))))
			}
		}
	}
	return found
}
