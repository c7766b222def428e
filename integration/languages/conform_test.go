package languages

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// The conformance kit tests the examples in other languages. They use plain commands or the functions library,
// alternating by day, on servers that the kit starts, restarts and fills; and they use the library on Redis 8 and
// Valkey. Each reaches its level. DUESTREAM_TEST_FULL=1 tries all of them both ways, and on all servers.
func TestExamplesConform(t *testing.T) {
	t.Parallel()
	duestream := Build(t)
	ReadAll(t, examples)
	found := All(t, examples)
	full := os.Getenv("DUESTREAM_TEST_FULL") != ""
	for way, library := range []string{"plain", "functions"} {
		t.Run(library, func(t *testing.T) {
			t.Parallel()
			for i, l := range found {
				if !full && (time.Now().YearDay()+i)%2 != way {
					continue
				}
				worker, producer := "good", "good"
				if library == "functions" {
					worker, producer = l.Worker, "complete"
				}
				t.Run(l.Name, func(t *testing.T) {
					t.Parallel()
					conforms(t, l, []string{duestream, "conformance", "--worker", "--level", worker}, "worker")
					conforms(t, l, []string{duestream, "conformance", "--producer", "--level", producer}, "producer")
				})
			}
		})
	}
	// On other servers, one language each: differences between servers affect all languages.
	for image, one := range map[string]string{"redis:8.6": "python", "valkey/valkey:9.1": "node"} {
		t.Run(image, func(t *testing.T) {
			t.Parallel()
			server, ok := redistest.OwnOn(t, image)
			if !ok {
				t.Logf("not run: no image %s in a local Docker engine", image)
				return
			}
			LoadFunctions(t, server)
			for _, l := range found {
				if l.Name != one && !full {
					continue
				}
				t.Run(l.Name, func(t *testing.T) {
					t.Parallel()
					conforms(t, l, []string{duestream, "conformance", "--redis", server.URL(), "--worker", "--level", l.Worker},
						"worker")
					conforms(t, l, []string{duestream, "conformance", "--redis", server.URL(), "--producer", "--level",
						"complete"}, "producer")
				})
			}
		})
	}
}

func conforms(t *testing.T, l Language, kit []string, mode string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	args := append(append(kit[1:len(kit):len(kit)], "--"), l.Command(mode)...)
	cmd := exec.CommandContext(ctx, kit[0], args...)
	cmd.Env = withoutVariables("DUESTREAM_")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(args, " "), err, said.String())
		return
	}
	t.Logf("%s: %s", mode, regexp.MustCompile(`(?m)^\d+ passed.*$`).FindString(said.String()))
}

// withoutVariables returns the environment without variables that begin with the prefix.
func withoutVariables(prefix string) (env []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, prefix) {
			env = append(env, v)
		}
	}
	return env
}
