package settings

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/written"
)

// ByWord returns the setting with a name in commands.
func ByWord(word string) (s policy.Setting, known bool) {
	for _, s := range policy.Settings() {
		if s.Word == word {
			return s, true
		}
	}
	return policy.Setting{}, false
}

// WordOf returns the name of a setting in commands.
func WordOf(s policy.Setting) string { return s.Word }

// Words returns the names of all settings in commands, sorted.
func Words() (words []string) {
	for _, s := range policy.Settings() {
		words = append(words, s.Word)
	}
	slices.Sort(words)
	return words
}

// JSON returns a value as commands print it in JSON: as over HTTP, but delays are a list of milliseconds.
func JSON(s policy.Setting, v policy.Value) any {
	if s.Kind == policy.Delays {
		return json.RawMessage("[" + v.Text + "]")
	}
	return s.JSON(v)
}

// variableOf returns the variable of a setting. Settings of a whole queue have none.
func variableOf(s policy.Setting) string { return envPrefix + "_" + strings.ToUpper(s.Word) }

// PolicyVariables calls do for each variable with a setting of the default policy that serve writes. value is the
// built-in value of the setting.
func PolicyVariables(do func(name, kind, value, meaning string)) {
	for _, s := range policy.Settings() {
		if s.WholeQueue {
			continue
		}
		builtIn := written.Setting(s, s.Get(policy.Default()))
		do(variableOf(s), kindName(s), builtIn, written.Describe(s, variableOf))
	}
}

func kindName(s policy.Setting) string {
	switch s.Kind {
	case policy.Duration:
		return "duration"
	case policy.Count:
		return "number"
	case policy.Switch:
		return "true/false"
	}
	return "text"
}

// readPolicy returns the default policy of queues from the environment. Its errors name variables.
func readPolicy() (bridge.Policy, error) {
	p := bridge.DefaultPolicy()
	var errs []error
	for _, s := range policy.Settings() {
		name := variableOf(s)
		text, set := os.LookupEnv(name)
		if !set || s.WholeQueue {
			continue
		}
		if text == "" {
			errs = append(errs, isEmpty(name))
			continue
		}
		value, err := written.ParseSetting(s, text)
		if err != nil {
			errs = append(errs, usage.Errorf("%s %q: %w", name, text, err))
			continue
		}
		s.Set(&p, value)
	}
	if err := errors.Join(errs...); err != nil {
		return p, err
	}
	return p, renamed(p.Validate(), variableOf)
}

// InWords renames the settings in an error by Update.Check to their names in commands.
func InWords(err error) error {
	return renamed(err, WordOf)
}

// renamed applies nameOf to the setting of each InvalidError in a tree of errors, and to the setting that its rule
// mentions.
func renamed(err error, nameOf func(policy.Setting) string) error {
	var tree interface{ Unwrap() []error }
	var field *bridge.InvalidError
	switch {
	case errors.As(err, &tree):
		var all []error
		for _, e := range tree.Unwrap() {
			all = append(all, renamed(e, nameOf))
		}
		return errors.Join(all...)
	case errors.As(err, &field):
		s, known := policy.Named(field.Field)
		if !known {
			return err
		}
		retryMin, _ := policy.Named(policy.SettingRetryMin) // the only setting that a rule mentions
		rule := strings.ReplaceAll(field.Rule, retryMin.Name, nameOf(retryMin))
		return &bridge.InvalidError{Field: nameOf(s), Value: field.Value, Rule: rule}
	}
	return err
}
