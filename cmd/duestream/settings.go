package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kelseyhightower/envconfig"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
)

const (
	envPrefix       = "DUESTREAM"
	defaultRedisURL = "redis://127.0.0.1:6379"
)

// connection is what every command reads of the environment.
type connection struct {
	RedisURL string `split_words:"true" default:"redis://127.0.0.1:6379" desc:"URL of Redis: redis, rediss, valkey, valkeys or unix"`
	Prefix   string `default:"duestream" desc:"beginning of all keys; another one is another namespace"`

	RedisPassword        string `split_words:"true" desc:"password for Redis, where the URL has none"`
	RedisPasswordFile    string `split_words:"true" desc:"file that holds it; a line end behind it does not count"`
	SentinelPassword     string `split_words:"true" desc:"password for the sentinels, where the URL has none"`
	SentinelPasswordFile string `split_words:"true" desc:"file that holds it"`
}

// settings is what serve reads besides.
type settings struct {
	VisibilityTimeout duration   `split_words:"true" default:"30s" desc:"how long a delivery may go without a sign of life (100ms to 168h)"`
	MaxAttempts       int        `split_words:"true" default:"40" desc:"deliveries to a group before a dead letter (1 to 1000000); 40 take about a day"`
	RetryMin          duration   `split_words:"true" default:"1s" desc:"delay after the first failure; each further one doubles (from 1ms)"`
	RetryMax          duration   `split_words:"true" default:"1h" desc:"longest delay between attempts (at least RETRY_MIN)"`
	LogLevel          slog.Level `split_words:"true" default:"info" desc:"debug, info, warn or error"`
	LogFormat         logFormat  `split_words:"true" default:"auto" desc:"json, text, or auto: text on a terminal, else json"`
	AnyServer         bool       `split_words:"true" default:"false" desc:"serve from a server that is too old or evicts keys: messages can be lost"`
	HealthFile        string     `split_words:"true" desc:"file that is renewed each second, for 'duestream health --self'"`
	ShutdownTimeout   duration   `split_words:"true" default:"10s" desc:"how long a clean stop may take (above 0)"`
}

// policy returns the policy of queues that have none of their own. Its errors name variables.
func (s *settings) policy() (bridge.Policy, error) {
	p := bridge.Policy{
		VisibilityTimeout: time.Duration(s.VisibilityTimeout), MaxAttempts: s.MaxAttempts, RetryMin: time.Duration(s.RetryMin), RetryMax: time.Duration(s.RetryMax),
	}
	err := renameFields(p.Validate(), func(field string) string {
		return envPrefix + "_" + strings.ToUpper(policyFields[field])
	})
	return p, err
}

// policyFields maps the names that settings of a policy have in Redis to those they have here.
var policyFields = map[string]string{
	admin.SettingVisibility: "visibility_timeout", admin.SettingMaxAttempts: "max_attempts",
	admin.SettingRetryMin: "retry_min", admin.SettingRetryMax: "retry_max", admin.SettingHeld: "held",
}

// renameFields renames the fields of all invalid errors in a tree of errors, also where a rule speaks of another field.
func renameFields(err error, name func(string) string) error {
	var tree interface{ Unwrap() []error }
	var field *bridge.InvalidError
	switch {
	case errors.As(err, &tree):
		var all []error
		for _, e := range tree.Unwrap() {
			all = append(all, renameFields(e, name))
		}
		return errors.Join(all...)
	case errors.As(err, &field):
		rule := strings.ReplaceAll(field.Rule, admin.SettingRetryMin, name(admin.SettingRetryMin))
		return &bridge.InvalidError{Field: name(field.Field), Value: field.Value, Rule: rule}
	}
	return err
}

// logFormat says how log lines look.
type logFormat string

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *logFormat) UnmarshalText(text []byte) error {
	*f = logFormat(text)
	if !slices.Contains([]logFormat{"json", "text", "auto"}, *f) {
		return errors.New("must be json, text or auto")
	}
	return nil
}

// readSettings reads the environment of serve. The error names every variable that is wrong, and those that do not exist.
func readSettings() (s settings, policy bridge.Policy, err error) {
	err = errors.Join(checkNames(os.Environ()), readEnv(&s))
	if err == nil && s.ShutdownTimeout <= 0 {
		err = invalidf("DUESTREAM_SHUTDOWN_TIMEOUT %q: must be above 0", s.ShutdownTimeout.String())
	}
	if err == nil {
		policy, err = s.policy()
	}
	return s, policy, err
}

// readEnv fills those fields of a struct that are zero from the environment. It goes field by field, because envconfig overwrites what
// is there and stops at the first error. And it refuses variables that are set but empty, which envconfig takes for a value: an empty
// URL is a secret that was not passed on.
func readEnv(spec any) error {
	var errs []error
	value := reflect.ValueOf(spec).Elem()
	for i := range value.NumField() {
		if !value.Field(i).IsZero() {
			continue
		}
		one := reflect.New(reflect.StructOf([]reflect.StructField{value.Type().Field(i)}))
		name := variables(one.Interface())[0]
		if text, set := os.LookupEnv(name); set && text == "" {
			errs = append(errs, invalidf("%s is set but empty: unset it, or give it a value", name))
			continue
		}
		if err := envconfig.Process(envPrefix, one.Interface()); err != nil {
			errs = append(errs, describe(err))
			continue
		}
		value.Field(i).Set(one.Elem().Field(0))
	}
	return errors.Join(errs...)
}

func describe(err error) error {
	var parse *envconfig.ParseError
	if !errors.As(err, &parse) {
		return invalidf("%w", err)
	}
	rule := parse.Err.Error()
	switch parse.TypeName {
	case "int":
		rule = "must be a whole number"
	case "bool":
		rule = "must be true or false"
	}
	return invalidf("%s %q: %s", parse.KeyName, parse.Value, rule)
}

// variables returns the names of the environment variables of a struct.
func variables(spec any) []string {
	var b strings.Builder
	if err := envconfig.Usagef(envPrefix, spec, &b, "{{range .}}{{usage_key .}} {{end}}"); err != nil {
		panic(err) // the template is a constant
	}
	return strings.Fields(b.String())
}

// foreignNames are variables that others set with our prefix: our tests, docker-compose.yml, and Kubernetes for every service whose
// name begins with duestream.
var foreignNames = regexp.MustCompile(`^DUESTREAM_(TEST_.*|(.*_)?IMAGE|REDIS_MAXMEMORY|(.*_)?SERVICE_(HOST|PORT)(_.*)?|(.*_)?PORT(_[0-9]+_.*)?)$`)

// checkNames refuses variables with our prefix that mean nothing: most likely they are misspelt, and what was meant has no effect.
func checkNames(environ []string) error {
	known := append(variables(&connection{}), variables(&settings{})...)
	var errs []error
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, envPrefix+"_") || slices.Contains(known, name) || foreignNames.MatchString(name) {
			continue
		}
		best := slices.MinFunc(known, func(a, b string) int { return distance(name, a) - distance(name, b) })
		if distance(name, best) <= 4 {
			errs = append(errs, invalidf("%s is not a setting: did you mean %s?", name, best))
		} else {
			errs = append(errs, invalidf("%s is not a setting: unset it; see `duestream serve --help` for those there are", name))
		}
	}
	return errors.Join(errs...)
}

// distance counts the single-character edits between two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// eachSetting calls do for every environment variable.
func eachSetting(do func(name, kind, value, meaning string)) {
	for _, spec := range []any{&connection{}, &settings{}} {
		v := reflect.TypeOf(spec).Elem()
		for i, name := range variables(spec) {
			f := v.Field(i)
			do(name, typeName(f.Type), f.Tag.Get("default"), f.Tag.Get("desc"))
		}
	}
}

// settingsTable is the table of variables in the help of serve.
func settingsTable() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "  VARIABLE\tTYPE\tDEFAULT\tMEANING")
	eachSetting(func(name, kind, value, meaning string) {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", name, kind, value, meaning)
	})
	w.Flush()
	return b.String()
}

func typeName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[duration]():
		return "duration"
	case reflect.TypeFor[int]():
		return "number"
	case reflect.TypeFor[bool]():
		return "true/false"
	}
	return "text"
}
