package integration

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// The examples in other languages, as the conformance kit sees them: with nothing but plain commands, and with the functions library, on
// servers that the kit starts, and also restarts and fills; and with the library on Redis 8 and Valkey. They reach what each claims.
func TestExamplesConform(t *testing.T) {
	duestream := build(t)
	dependOnExamples(t)
	found := languages(t)
	for _, library := range []string{"plain", "functions"} {
		t.Run(library, func(t *testing.T) {
			for _, l := range found {
				worker, producer := "good", "good"
				if library == "functions" {
					worker, producer = l.worker, "complete"
				}
				t.Run(l.name, func(t *testing.T) {
					t.Parallel()
					conforms(t, l, []string{duestream, "conformance", "--worker", "--level", worker}, "worker")
					conforms(t, l, []string{duestream, "conformance", "--producer", "--level", producer}, "producer")
				})
			}
		})
	}
	// Elsewhere one language each: what differs between servers differs for all. DUESTREAM_TEST_FULL=1 runs all of them.
	for image, one := range map[string]string{"redis:8.6": "python", "valkey/valkey:9.1": "node"} {
		t.Run(image, func(t *testing.T) {
			server, ok := redistest.OwnOn(t, image)
			if !ok {
				t.Logf("not run: no image %s in a local Docker engine", image)
				return
			}
			withFunctions(t, server)
			for _, l := range found {
				if l.name != one && os.Getenv("DUESTREAM_TEST_FULL") == "" {
					continue
				}
				t.Run(l.name, func(t *testing.T) {
					t.Parallel()
					conforms(t, l, []string{duestream, "conformance", "--redis", server.URL(), "--worker", "--level", l.worker}, "worker")
					conforms(t, l, []string{duestream, "conformance", "--redis", server.URL(), "--producer", "--level", "complete"}, "producer")
				})
			}
		})
	}
}

// withFunctions loads the functions library.
func withFunctions(t *testing.T, server *redistest.Server) {
	t.Helper()
	r, err := bridge.Dial(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := bridge.LoadFunctions(t.Context(), r, "", false); err != nil {
		t.Fatal(err)
	}
}

func conforms(t *testing.T, l language, kit []string, mode string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	args := append(append(kit[1:len(kit):len(kit)], "--"), l.command(mode)...)
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

// withoutVariables is the environment, but for those whose names begin so.
func withoutVariables(prefix string) (env []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, prefix) {
			env = append(env, v)
		}
	}
	return env
}
