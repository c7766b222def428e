package languages

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/acl"
	"github.com/duestream/duestream/integration/redistest"
)

// asUser is a script that puts a user and a password, its first two arguments, into the URL that the conformance kit
// passes, and runs the program in its other arguments.
const asUser = `#!/bin/bash
export DUESTREAM_REDIS_URL="${DUESTREAM_REDIS_URL/redis:\/\//redis:\/\/$1:$2@}"
shift 2
exec "$@"
`

// The examples in other languages work as the documented users plain-producer and plain-worker. Regression: the workers
// in Python and Node.js were not allowed to read the settings of their queue.
func TestExamplesWorkAsPlainUsers(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operations/users.md")
	if err != nil {
		t.Fatal(err)
	}
	anyPrefix := strings.ReplaceAll(string(text), "~duestream:", "~*:") // the kit has a prefix of its own
	users, duestream := acl.Users(anyPrefix), Build(t)
	wrapper := filepath.Join(t.TempDir(), "as")
	if err := os.WriteFile(wrapper, []byte(asUser), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, l := range All(t, examples) {
		for mode, cases := range map[string]string{"worker": "partitions-extend", "producer": "wakes-each"} {
			t.Run(l.Name+" "+mode, func(t *testing.T) {
				t.Parallel()
				server := redistest.Own(t)
				name := "plain-" + mode
				create := strings.Fields(users[name].Line)
				if l.Name == "shell" && mode == "producer" {
					create = append(create, acl.Also(anyPrefix, "the producer in shell")...)
				}
				server.Do(t, create...)
				args := append([]string{"conformance", "--redis", server.URL(), "--" + mode, "--case", cases, "--", wrapper, name,
					users[name].Password}, l.Command(mode)...)
				if out, err := exec.Command(duestream, args...).CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
				denials, err := acl.Denials(t.Context(), server.Client(t))
				if err != nil {
					t.Fatal(err)
				}
				for _, denial := range denials {
					switch what, _, _ := strings.Cut(denial.What, "|"); what {
					case "command", "info", "hello": // client libraries send these when they connect, and go on without them
					case "fcall": // the examples try the functions library, and go on without it
					default:
						t.Error(fmt.Sprint(name, " was denied ", what))
					}
				}
			})
		}
	}
}
