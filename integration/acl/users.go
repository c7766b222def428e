package acl

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// rule allows commands on the keys that match its patterns. The first rule of a user is its root rule, the others are
// selectors.
type rule struct {
	patterns []string
	commands []string // in the form "XGROUP CREATE"
}

var (
	// setUser matches the command that creates a user in the document: the whole command, name, password and rules.
	// alsoRules matches a row of the table "Also needed": the rules and their purpose.
	setUser   = regexp.MustCompile(`(?m)^> (ACL SETUSER (\S+) on >(\S+) (.*))$`)
	alsoRules = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (.*) \\|$")
)

// User is a user of docs/operations/users.md.
type User struct {
	Line     string // the command that creates the user: ACL SETUSER …
	Password string
	rules    []rule
}

// Users parses the users in a text. The result is by name.
func Users(text string) map[string]User {
	users := map[string]User{}
	for _, m := range setUser.FindAllStringSubmatch(text, -1) {
		u := User{Line: m[1], Password: m[3]}
		own, rest, _ := strings.Cut(m[4], "(")
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

// Also returns the additional rules from the table in a text, from the rows whose purpose begins with the given
// words.
func Also(text, purpose string) (rules []string) {
	for _, m := range alsoRules.FindAllStringSubmatch(text, -1) {
		if strings.HasPrefix(m[2], purpose) {
			rules = append(rules, strings.Fields(strings.ReplaceAll(m[1], `\|`, "|"))...)
		}
	}
	return rules
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

// use is a command that a program sends for a key, or for no key (""). why tells where the program does so.
type use struct{ command, key, why string }

// covers reports whether the rule allows the use.
func (r rule) covers(u use) bool {
	return slices.Contains(r.commands, u.command) &&
		(u.key == "" || slices.ContainsFunc(r.patterns, func(p string) bool { return matches(p, u.key) }))
}

func matches(pattern, key string) bool {
	ok, _ := path.Match(strings.NewReplacer("{", `\{`, "}", `\}`).Replace(pattern), key)
	return ok
}

// superfluous returns the parts of a user's rules that no use needs.
func superfluous(u User, uses []use) (found []string) {
	for _, r := range u.rules {
		for _, command := range r.commands {
			one := rule{r.patterns, []string{command}}
			if !slices.ContainsFunc(uses, one.covers) {
				found = append(found, fmt.Sprintf("+%s on %s", strings.ToLower(strings.ReplaceAll(command, " ", "|")),
					strings.Join(r.patterns, " ")))
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
