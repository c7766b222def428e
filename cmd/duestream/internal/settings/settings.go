// Package settings reads the environment: how to reach Redis, with passwords, and how a bridge serves.
package settings

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
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

const (
	envPrefix       = "DUESTREAM"
	DefaultRedisURL = "redis://127.0.0.1:6379"
)

// Connection holds the variables that every command reads.
type Connection struct {
	RedisURL string `split_words:"true" default:"redis://127.0.0.1:6379" desc:"URL of Redis: redis, rediss, valkey, valkeys or unix"`
	Prefix   string `default:"duestream" desc:"beginning of all keys; another one is another namespace"`

	AllowOldBridges bool `split_words:"true" default:"false" desc:"write also what a living bridge may not serve: for an upgrade"`

	RedisPassword        string `split_words:"true" desc:"password for Redis, where the URL has none"`
	RedisPasswordFile    string `split_words:"true" desc:"file that holds it; a line end behind it does not count"`
	SentinelPassword     string `split_words:"true" desc:"password for the sentinels, where the URL has none"`
	SentinelPasswordFile string `split_words:"true" desc:"file that holds it"`
}

// Serve holds the variables that serve reads besides Connection and HTTP.
type Serve struct {
	VisibilityTimeout flags.Duration `split_words:"true" default:"30s" desc:"how long a delivery may go without a sign of life (100ms to 168h)"`
	MaxAttempts       int            `split_words:"true" default:"40" desc:"deliveries to a group before a dead letter (1 to 1000000); 40 take about a day"`
	RetryMin          flags.Duration `split_words:"true" default:"1s" desc:"delay after the first failure; each further one doubles (from 1ms)"`
	RetryMax          flags.Duration `split_words:"true" default:"1h" desc:"longest delay between attempts (at least RETRY_MIN)"`
	RetryDelays       flags.Delays   `split_words:"true" desc:"exact delays after failures instead, with commas between: 1m,3m,5m; the last one repeats"`
	RetryFor          flags.Duration `split_words:"true" default:"0s" desc:"how long a message is tried from its due time on (up to 3650d); 0s = no limit"`
	MaxSnoozes        int            `split_words:"true" default:"0" desc:"how often a group may snooze a message (up to 1000000); 0 = 1000"`
	MaxCrashes        int            `split_words:"true" default:"0" desc:"times a message may be abandoned by workers, counted apart from failures; 0 = each is a failure"`
	HandlerTimeout    flags.Duration `split_words:"true" default:"0s" desc:"how long a handler may take (up to 3650d); 0s = by the configuration of each worker"`
	LogLevel          slog.Level     `split_words:"true" default:"info" desc:"debug, info, warn or error"`
	LogFormat         LogFormat      `split_words:"true" default:"auto" desc:"json, text, or auto: text on a terminal, else json"`
	AnyServer         bool           `split_words:"true" default:"false" desc:"serve from a server that is too old or evicts keys: messages can be lost"`
	HealthFile        string         `split_words:"true" desc:"file that is renewed each second, for 'duestream health --self'"`
	MetricsAddr       string         `split_words:"true" desc:"host:port to answer on over HTTP, for Prometheus on /metrics"`
	ShutdownTimeout   flags.Duration `split_words:"true" default:"10s" desc:"how long a clean stop may take (above 0)"`
}

// HTTP holds the variables that gateway reads besides Connection and Process, and serve besides Connection and Serve.
type HTTP struct {
	HTTPAddr           string `envconfig:"HTTP_ADDR" desc:"host:port to take HTTP requests on; gateway does so on 127.0.0.1:7777 without"`
	HTTPTokensFile     string `envconfig:"HTTP_TOKENS_FILE" desc:"file of tokens for them, beside those in Redis"`
	HTTPFirstTokenFile string `envconfig:"HTTP_FIRST_TOKEN_FILE" desc:"new file for a token that may do everything, made where there is none"`
	HTTPDurability     string `envconfig:"HTTP_DURABILITY" desc:"what writes over HTTP wait for: accepted, fsynced, replicated=n"`
	HTTPTLSCert        string `envconfig:"HTTP_TLS_CERT" desc:"file of the certificate to speak TLS with; read again when it changes"`
	HTTPTLSKey         string `envconfig:"HTTP_TLS_KEY" desc:"file of its private key"`
	HTTPTLSClientCA    string `envconfig:"HTTP_TLS_CLIENT_CA" desc:"file of who may sign the certificates that clients must show then"`
	AdminAddr          string `split_words:"true" desc:"host:port to answer operators on over HTTP"`
	AdminAccountsFile  string `split_words:"true" desc:"file of the operators, name:password on each line; needed beyond this machine"`
	Push               bool   `default:"false" desc:"also post messages to URLs, as 'duestream push run' does"`
}

// Process holds the variables of Serve that gateway reads, too.
type Process struct {
	LogLevel        slog.Level     `split_words:"true" default:"info"`
	LogFormat       LogFormat      `split_words:"true" default:"auto"`
	MetricsAddr     string         `split_words:"true"`
	ShutdownTimeout flags.Duration `split_words:"true" default:"10s"`
}

// Check refuses a shutdown timeout that is not above 0.
func (p *Process) Check() error { return checkPatience(p.ShutdownTimeout) }

func checkPatience(d flags.Duration) error {
	if d <= 0 {
		return usage.Errorf("DUESTREAM_SHUTDOWN_TIMEOUT %q: must be above 0", d.String())
	}
	return nil
}

// Migrate holds the variables that migrate lmstfy reads besides Connection.
type Migrate struct {
	LmstfyRedisURL string `split_words:"true" desc:"URL of the Redis of an lmstfy server, where its jobs are"`
}

// policy returns the default policy of queues. Its errors name variables.
func (s *Serve) policy() (bridge.Policy, error) {
	p := bridge.Policy{
		VisibilityTimeout: time.Duration(s.VisibilityTimeout), MaxAttempts: s.MaxAttempts, RetryMin: time.Duration(s.RetryMin),
		RetryMax: time.Duration(s.RetryMax), RetryDelays: bridge.Delays(s.RetryDelays), RetryFor: time.Duration(s.RetryFor),
		MaxSnoozes: s.MaxSnoozes, MaxCrashes: s.MaxCrashes, HandlerTimeout: time.Duration(s.HandlerTimeout),
		HistoryAge: bridge.DefaultPolicy().HistoryAge,
	}
	err := RenameFields(p.Validate(), func(field string) string {
		return envPrefix + "_" + strings.ToUpper(PolicyFields[field])
	})
	return p, err
}

// PolicyFields maps the name of a policy setting in Redis to its name in commands and variables.
var PolicyFields = map[string]string{
	admin.SettingVisibility: "visibility_timeout", admin.SettingMaxAttempts: "max_attempts",
	admin.SettingRetryMin: "retry_min", admin.SettingRetryMax: "retry_max", admin.SettingRetryDelays: "retry_delays",
	admin.SettingRetryFor: "retry_for", admin.SettingMaxSnoozes: "max_snoozes", admin.SettingMaxCrashes: "max_crashes",
	admin.SettingHandlerTimeout: "handler_timeout", admin.SettingHeldWorkers: "held_workers", admin.SettingRate: "rate", admin.SettingBurst: "burst",
	admin.SettingFreeRetries: "free_retries", admin.SettingReadyLimit: "ready_limit",
	admin.SettingHeld: "held", admin.SettingHistory: "history", admin.SettingHistoryAge: "history_age",
	admin.SettingKeyFailure: "key_failure",
}

// RenameFields renames the field of each InvalidError in a tree of errors, and the field that its rule mentions.
func RenameFields(err error, name func(string) string) error {
	var tree interface{ Unwrap() []error }
	var field *bridge.InvalidError
	switch {
	case errors.As(err, &tree):
		var all []error
		for _, e := range tree.Unwrap() {
			all = append(all, RenameFields(e, name))
		}
		return errors.Join(all...)
	case errors.As(err, &field):
		rule := strings.ReplaceAll(field.Rule, admin.SettingRetryMin, name(admin.SettingRetryMin))
		return &bridge.InvalidError{Field: name(field.Field), Value: field.Value, Rule: rule}
	}
	return err
}

// LogFormat is the format of log lines: json, text or auto.
type LogFormat string

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *LogFormat) UnmarshalText(text []byte) error {
	*f = LogFormat(text)
	if !slices.Contains([]LogFormat{"json", "text", "auto"}, *f) {
		return errors.New("must be json, text or auto")
	}
	return nil
}

// Read reads the environment of serve. The error names every variable that is wrong or unknown.
func Read() (s Serve, policy bridge.Policy, err error) {
	err = errors.Join(CheckNames(os.Environ()), Fill(&s))
	if err == nil {
		err = checkPatience(s.ShutdownTimeout)
	}
	if err == nil {
		policy, err = s.policy()
	}
	return s, policy, err
}

// Fill sets the zero fields of a struct from the environment. It goes field by field, because envconfig overwrites
// non-zero fields and stops at the first error. It refuses a variable that is set but empty, which envconfig would
// accept: an empty URL is usually a secret that was not passed on.
func Fill(spec any) error {
	var errs []error
	value := reflect.ValueOf(spec).Elem()
	for i := range value.NumField() {
		if !value.Field(i).IsZero() {
			continue
		}
		one := reflect.New(reflect.StructOf([]reflect.StructField{value.Type().Field(i)}))
		name := Variables(one.Interface())[0]
		if text, set := os.LookupEnv(name); set && text == "" {
			errs = append(errs, usage.Errorf("%s is set but empty: unset it, or give it a value", name))
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
		return usage.Errorf("%w", err)
	}
	rule := parse.Err.Error()
	switch parse.TypeName {
	case "int":
		rule = "must be a whole number"
	case "bool":
		rule = "must be true or false"
	}
	return usage.Errorf("%s %q: %s", parse.KeyName, parse.Value, rule)
}

// Variables returns the names of the environment variables that a struct reads.
func Variables(spec any) []string {
	var b strings.Builder
	if err := envconfig.Usagef(envPrefix, spec, &b, "{{range .}}{{usage_key .}} {{end}}"); err != nil {
		panic(err) // the template is a constant
	}
	return strings.Fields(b.String())
}

// foreignNames matches variables with our prefix that others set: our tests, docker-compose.yml, and Kubernetes for
// every service whose name begins with duestream.
var foreignNames = regexp.MustCompile(
	`^DUESTREAM_(TEST_.*|(.*_)?IMAGE|REDIS_MAXMEMORY|(.*_)?SERVICE_(HOST|PORT)(_.*)?|(.*_)?PORT(_[0-9]+_.*)?)$`)

// CheckNames refuses unknown variables with our prefix. Such a name is probably misspelt, and the setting would have
// no effect.
func CheckNames(environ []string) error {
	known := slices.Concat(Variables(&Connection{}), Variables(&Serve{}), Variables(&HTTP{}))
	var errs []error
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, envPrefix+"_") || slices.Contains(known, name) || foreignNames.MatchString(name) {
			continue
		}
		best := slices.MinFunc(known, func(a, b string) int { return distance(name, a) - distance(name, b) })
		if distance(name, best) <= 4 {
			errs = append(errs, usage.Errorf("%s is not a setting: did you mean %s?", name, best))
		} else {
			errs = append(errs, usage.Errorf("%s is not a setting: unset it; see `duestream serve --help` for those there are",
				name))
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

// Each calls do for each environment variable of serve.
func Each(do func(name, kind, value, meaning string)) {
	for _, spec := range []any{&Connection{}, &Serve{}, &HTTP{}} {
		EachOf(spec, do)
	}
}

// EachOf calls do for each environment variable that a struct reads.
func EachOf(spec any, do func(name, kind, value, meaning string)) {
	v := reflect.TypeOf(spec).Elem()
	for i, name := range Variables(spec) {
		f := v.Field(i)
		do(name, typeName(f.Type), f.Tag.Get("default"), f.Tag.Get("desc"))
	}
}

// Table returns the table of variables for the help of serve.
func Table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "  VARIABLE\tTYPE\tDEFAULT\tMEANING")
	Each(func(name, kind, value, meaning string) {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", name, kind, value, meaning)
	})
	w.Flush()
	return b.String()
}

func typeName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[flags.Duration]():
		return "duration"
	case reflect.TypeFor[int]():
		return "number"
	case reflect.TypeFor[bool]():
		return "true/false"
	}
	return "text"
}
