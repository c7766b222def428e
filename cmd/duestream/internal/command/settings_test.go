package command_test

import (
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
)

// serveUnreachable runs serve with the environment of the test and an address without a server. An environment that
// is refused before serve dials gives exit.Invalid.
func serveUnreachable(t *testing.T) clitest.Result {
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	return c.Run("serve")
}

// Without variables, the settings are the library's default policy, and the default connection.
func TestSettingsWithoutVariablesAreTheDefaultsOfThePolicy(t *testing.T) {
	_, policy, err := settings.Read()
	if err != nil {
		t.Fatal(err)
	}
	if policy != bridge.DefaultPolicy() {
		t.Errorf("policy %+v, want %+v", policy, bridge.DefaultPolicy())
	}
	var c settings.Connection
	if err := settings.Fill(&c); err != nil || c.RedisURL != settings.DefaultRedisURL && c.Prefix != "duestream" {
		t.Errorf("connection %+v, error %v", c, err)
	}
}

// A misspelt variable would leave its setting at the default without a word, so every unknown name with our prefix is
// refused.
func TestMisspeltVariableIsRefusedWithASuggestion(t *testing.T) {
	t.Setenv("DUESTREAM_MAX_ATEMPTS", "3")
	t.Setenv("DUESTREAM_WORKER_THREADS", "3")
	r := serveUnreachable(t)
	for _, text := range []string{"DUESTREAM_MAX_ATEMPTS is not a setting: did you mean DUESTREAM_MAX_ATTEMPTS?",
		"DUESTREAM_WORKER_THREADS is not a setting"} {
		if r.Code != exit.Invalid || !strings.Contains(r.Err, text) {
			t.Errorf("exit code %d, stderr without %q:\n%s", r.Code, text, r.Err)
		}
	}
}

// Docker links, Kubernetes services, and the files for Compose and for tests set variables with our prefix that are no
// settings. They must not stop serve.
func TestVariablesOfOthersAreNotRefused(t *testing.T) {
	err := settings.CheckNames([]string{
		"PATH=/bin", "DUESTREAMX=1", "DUESTREAM_TEST_REDIS_URL=x", "DUESTREAM_IMAGE=x", "DUESTREAM_REDIS_IMAGE=x", "DUESTREAM_BUILDER_IMAGE=x",
		"DUESTREAM_REDIS_MAXMEMORY=1gb", "DUESTREAM_REDIS_PORT=6380", "DUESTREAM_PORT=tcp://10.0.0.1:80", "DUESTREAM_SERVICE_HOST=10.0.0.1",
		"DUESTREAM_SERVICE_PORT_HTTP=80", "DUESTREAM_PORT_80_TCP_ADDR=10.0.0.1", "DUESTREAM_REDIS_PORT_6379_TCP=tcp://10.0.0.1:6379",
		"DUESTREAM_REDIS_URL=redis://x", "DUESTREAM_LOG_LEVEL=info",
	})
	if err != nil {
		t.Error(err)
	}
}

// All wrong variables are reported in one error, each by its full name.
func TestAllWrongVariablesAreNamedAtOnce(t *testing.T) {
	for name, value := range map[string]string{
		"VISIBILITY_TIMEOUT": "30", "MAX_ATTEMPTS": "ten", "RETRY_MIN": "", "LOG_LEVEL": "loud", "LOG_FORMAT": "xml", "ANY_SERVER": "yes",
	} {
		t.Setenv("DUESTREAM_"+name, value)
	}
	r := serveUnreachable(t)
	if r.Code != exit.Invalid {
		t.Errorf("exit code %d", r.Code)
	}
	for _, text := range []string{
		`DUESTREAM_VISIBILITY_TIMEOUT "30": must be a duration`, `DUESTREAM_MAX_ATTEMPTS "ten": must be a whole number`,
		`DUESTREAM_RETRY_MIN is set but empty`, `DUESTREAM_LOG_LEVEL "loud"`,
		`DUESTREAM_LOG_FORMAT "xml": must be json, text or auto`,
		`DUESTREAM_ANY_SERVER "yes": must be true or false`,
	} {
		if !strings.Contains(r.Err, text) {
			t.Errorf("stderr does not say %q:\n%s", text, r.Err)
		}
	}
}

// A value outside the limits of the policy is an error that names the variable, because the user knows no field of the
// policy.
func TestSettingsOutOfTheirLimitsAreRefusedByTheNameOfTheVariable(t *testing.T) {
	t.Setenv("DUESTREAM_VISIBILITY_TIMEOUT", "50ms")
	t.Setenv("DUESTREAM_MAX_ATTEMPTS", "0")
	t.Setenv("DUESTREAM_RETRY_MAX", "10ms")
	r := serveUnreachable(t)
	for _, text := range []string{
		`DUESTREAM_VISIBILITY_TIMEOUT "50ms": must be between 100ms and`,
		`DUESTREAM_MAX_ATTEMPTS "0": must be between 1 and 1000000`,
		`DUESTREAM_RETRY_MAX "10ms": must be at least`,
	} {
		if r.Code != exit.Invalid || !strings.Contains(r.Err, text) {
			t.Errorf("exit code %d, stderr without %q:\n%s", r.Code, text, r.Err)
		}
	}
}

// A given flag hides even a bad variable. Without the flag, the bad variable is an error.
func TestFlagsWinOverTheEnvironment(t *testing.T) {
	t.Setenv("DUESTREAM_REDIS_URL", "")
	t.Setenv("DUESTREAM_PREFIX", "bad prefix")
	c := clitest.New(t)
	c.OK("schedule", "q", "hello")
	c.Prefix = ""
	c.Fails(exit.Invalid, []string{`prefix "bad prefix": must be`}, "schedule", "q", "hello")
	c.URL, c.Prefix = "", "p"
	c.Fails(exit.Invalid, []string{"DUESTREAM_REDIS_URL is set but empty"}, "schedule", "q", "hello")
}

// Without flags, the connection and the prefix come from the environment.
func TestConnectionComesFromTheEnvironment(t *testing.T) {
	c := clitest.New(t)
	t.Setenv("DUESTREAM_REDIS_URL", c.URL)
	t.Setenv("DUESTREAM_PREFIX", c.Prefix)
	withFlags := *c
	c.URL, c.Prefix = "", ""
	c.OK("schedule", "q", "--id", "one", "--in", "1h", "hello")
	withFlags.OK("show", "q", "one")
}

// The help of serve is the documentation of the environment, so it must list every variable.
func TestServeHelpPrintsTheTableOfVariables(t *testing.T) {
	out := (&clitest.CLI{T: t}).OK("serve", "--help")
	settings.Each(func(name, _, _, _ string) {
		if !strings.Contains(out, "  "+name+"  ") {
			t.Errorf("no %s in\n%s", name, out)
		}
	})
}
