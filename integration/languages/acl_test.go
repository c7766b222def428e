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

// asUser runs a program with a user and password, its first two arguments, in the URL of the kit.
const asUser = `#!/bin/bash
export DUESTREAM_REDIS_URL="${DUESTREAM_REDIS_URL/redis:\/\//redis:\/\/$1:$2@}"
shift 2
exec "$@"
`

// The examples in other languages work as the documented users for plain producers and workers. The bug: the workers
// in Python and Node.js could not read the settings of their queue.
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
		for mode, some := range map[string]string{"worker": "partitions", "producer": "wake-token"} {
			t.Run(l.Name+" "+mode, func(t *testing.T) {
				t.Parallel()
				server := redistest.Own(t)
				name := "plain-" + mode
				create := strings.Fields(users[name].Line)
				if l.Name == "shell" && mode == "producer" {
					create = append(create, acl.Also(anyPrefix, "the producer in shell")...)
				}
				server.Do(t, create...)
				args := append([]string{"conformance", "--redis", server.URL(), "--" + mode, "--case", some, "--", wrapper, name,
					users[name].Password}, l.Command(mode)...)
				if out, err := exec.Command(duestream, args...).CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
				client := server.Client(t)
				log, err := client.Do(t.Context(), client.B().Arbitrary("ACL", "LOG").Build()).ToArray()
				if err != nil {
					t.Fatal(err)
				}
				for _, row := range log {
					entry, err := row.AsMap()
					if err != nil {
						t.Fatal(err)
					}
					object := entry["object"]
					what, _ := object.ToString()
					switch what, _, _ = strings.Cut(what, "|"); what {
					case "client", "command", "info", "hello": // introductions of clients
					case "fcall": // the example works without the library
					default:
						t.Error(fmt.Sprint(name, " was denied ", what))
					}
				}
			})
		}
	}
}
