package languages

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// The examples in other languages reach their levels of the conformance kit, which starts, restarts and fills servers
// of its own. To save time, each language uses plain commands on one day and the functions library on the next, and
// each day one language also runs on Redis 8 or on Valkey. DUESTREAM_TEST_FULL=1 runs every language both ways and on
// all servers.
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
				worker, producer := levels(l, library == "functions")
				t.Run(l.Name, func(t *testing.T) {
					t.Parallel()
					conforms(t, l, []string{duestream, "conformance", "--worker", "--level", worker}, "worker")
					conforms(t, l, []string{duestream, "conformance", "--producer", "--level", producer}, "producer")
				})
			}
		})
	}
	// One language is enough on other servers, because a difference between servers would affect all languages.
	for image, one := range map[string]string{"redis:8.6": "python", "valkey/valkey:9.1": "node"} {
		day := time.Now().YearDay() % 4
		if !full && (day%2 == 0) != (one == "node") {
			continue
		}
		library := full || day < 2
		t.Run(image, func(t *testing.T) {
			t.Parallel()
			server, ok := redistest.OwnOn(t, image)
			if !ok {
				t.Logf("not run: no image %s in a local Docker engine", image)
				return
			}
			if library {
				LoadFunctions(t, server)
			}
			for _, l := range found {
				if l.Name != one && !full {
					continue
				}
				worker, producer := levels(l, library)
				t.Run(l.Name, func(t *testing.T) {
					t.Parallel()
					command := []string{duestream, "conformance", "--redis", server.URL()}
					conforms(t, l, slices.Concat(command, []string{"--worker", "--level", worker}), "worker")
					conforms(t, l, slices.Concat(command, []string{"--producer", "--level", producer}), "producer")
				})
			}
		})
	}
}

// levels returns the levels that a language reaches, with or without the library of functions.
func levels(l Language, library bool) (worker, producer string) {
	if library {
		return l.Worker, "complete"
	}
	return "good", "good"
}

// conforms runs the conformance kit on the program of a language. kit is the kit's command line; mode is "worker" or
// "producer".
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
