package workers

import (
	"slices"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge"
)

// Regression: a command got its worker's passwords, and so did everything that shows an environment. The names of
// password files are still handed on, and a header called redis-password belongs to the message.
func TestWorkHandsNoPasswordToItsCommand(t *testing.T) {
	for _, name := range ourPasswords {
		t.Setenv(name, "secret")
		t.Setenv(name+"_FILE", "/run/"+name)
	}
	runner := &commandRunner{redisURL: "redis://redis:6379"}
	m := &bridge.Message{}
	m.ID, m.Headers = "one", map[string]string{"redis-password": "of a message"}
	env := runner.environment(m)
	for _, entry := range env {
		if strings.Contains(entry, "secret") {
			t.Errorf("%s", entry)
		}
	}
	for _, want := range []string{"DUESTREAM_REDIS_PASSWORD_FILE=/run/DUESTREAM_REDIS_PASSWORD",
		"DUESTREAM_REDIS_URL=redis://redis:6379", "DUESTREAM_HEADER_REDIS_PASSWORD=of a message"} {
		if !slices.Contains(env, want) {
			t.Errorf("no %s in %q", want, env)
		}
	}
}
