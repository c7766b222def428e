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

	"github.com/kelseyhightower/envconfig"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

const (
	envPrefix       = "DUESTREAM"
	DefaultRedisURL = "redis://127.0.0.1:6379"
)

// Connection holds the variables that every command reads.
type Connection struct {
	RedisURL string `split_words:"true" default:"redis://127.0.0.1:6379" desc:"URL (redis, rediss, valkey, valkeys, unix)"`
	Prefix   string `default:"duestream" desc:"beginning of all keys; each prefix is a namespace of its own"`

	AllowOldBridges bool `split_words:"true" default:"false" desc:"also write data that older bridges cannot handle"`

	RedisPassword        string `split_words:"true" desc:"password for Redis, where the URL has none"`
	RedisPasswordFile    string `split_words:"true" desc:"file of the password for Redis; a line end after it is ignored"`
	SentinelPassword     string `split_words:"true" desc:"password for the sentinels, where the URL has none"`
	SentinelPasswordFile string `split_words:"true" desc:"file of the password for the sentinels"`
}

// Serve holds the variables that serve reads besides Connection, HTTP and those of its default policy: see
// PolicyVariables.
type Serve struct {
	LogLevel  slog.Level `split_words:"true" default:"info" desc:"debug, info, warn or error"`
	LogFormat LogFormat  `split_words:"true" default:"auto" desc:"json, text, or auto: text on a terminal, else json"`

	AnyServer bool `split_words:"true" default:"false" desc:"use a server that is too old or evicts: messages can be lost"`

	HealthFile string `split_words:"true" desc:"file that is renewed each second, for 'duestream health --self'"`

	MetricsAddr     string         `split_words:"true" desc:"host:port to answer on over HTTP, for Prometheus on /metrics"`
	ShutdownTimeout flags.Duration `split_words:"true" default:"10s" desc:"how long a clean stop may take (above 0)"`
}

// HTTP holds the variables that gateway reads besides Connection and Process, and serve besides Connection and Serve.
type HTTP struct {
	HTTPAddr string `envconfig:"HTTP_ADDR" desc:"host:port to take HTTP requests on; default of gateway: 127.0.0.1:7777"`

	HTTPTokensFile     string `envconfig:"HTTP_TOKENS_FILE" desc:"file of HTTP tokens, besides the tokens in Redis"`
	HTTPFirstTokenFile string `envconfig:"HTTP_FIRST_TOKEN_FILE" desc:"new file for the first token, which has all rights"`

	HTTPDurability string `envconfig:"HTTP_DURABILITY" desc:"durability of HTTP writes: accepted, fsynced, replicated=n"`

	HTTPTLSCert     string `envconfig:"HTTP_TLS_CERT" desc:"certificate file for TLS; read again when it changes"`
	HTTPTLSKey      string `envconfig:"HTTP_TLS_KEY" desc:"file of the private key of the certificate"`
	HTTPTLSClientCA string `envconfig:"HTTP_TLS_CLIENT_CA" desc:"CA file: clients must show a certificate signed by it"`

	AdminAddr         string `split_words:"true" desc:"host:port to answer operators on over HTTP"`
	AdminAccountsFile string `split_words:"true" desc:"file of operators: name:password lines; needed beyond this machine"`

	DashboardReadOnly bool `split_words:"true" default:"false" desc:"the dashboard of the admin address changes nothing"`

	Push bool `default:"false" desc:"also post messages to URLs, as 'duestream push run' does"`
}

// Process holds the variables of Serve that gateway reads, too.
type Process struct {
	LogLevel        slog.Level     `split_words:"true" default:"info"`
	LogFormat       LogFormat      `split_words:"true" default:"auto"`
	MetricsAddr     string         `split_words:"true"`
	ShutdownTimeout flags.Duration `split_words:"true" default:"10s"`
}

// Check refuses a shutdown timeout that is not above 0.
func (p *Process) Check() error { return checkShutdownTimeout(p.ShutdownTimeout) }

func checkShutdownTimeout(d flags.Duration) error {
	if d <= 0 {
		return usage.Errorf("DUESTREAM_SHUTDOWN_TIMEOUT %q: must be above 0", d.String())
	}
	return nil
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
		err = checkShutdownTimeout(s.ShutdownTimeout)
	}
	policy, policyErr := readPolicy()
	return s, policy, errors.Join(err, policyErr)
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
			errs = append(errs, isEmpty(name))
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

func isEmpty(name string) error {
	return usage.Errorf("%s is set but empty: unset it, or give it a value", name)
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
	var known []string
	Each(func(name, _, _, _ string) { known = append(known, name) })
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
			errs = append(errs, usage.Errorf("%s is not a setting: unset it; `duestream serve --help` lists the settings",
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

// Each calls do for each environment variable of serve. value is the default.
func Each(do func(name, kind, value, meaning string)) {
	EachOf(&Connection{}, do)
	PolicyVariables(do)
	EachOf(&Serve{}, do)
	EachOf(&HTTP{}, do)
}

// EachOf calls do for each environment variable that a struct reads. value is the default.
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
