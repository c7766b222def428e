package integration

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// alsoNeeded returns additional rights from docs/operations/users.md: the words that the first group of the pattern
// matches.
func alsoNeeded(t *testing.T, pattern string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", "operations", "users.md"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(pattern).FindSubmatch(text)
	if m == nil {
		t.Fatalf("docs/operations/users.md does not say %q", pattern)
	}
	return strings.Fields(strings.ReplaceAll(string(m[1]), `\|`, "|"))
}

// The documented users work behind Sentinel and on a cluster, with the additional rights of the document.
func TestUsersNeedWhatIsDocumentedForTheTopology(t *testing.T) {
	t.Parallel()
	users := documentedUsers(t)
	create := func(t *testing.T, servers []*redistest.Server, also []string) {
		for _, server := range servers {
			for _, name := range []string{"producer", "worker", "bridge"} {
				server.Do(t, append(strings.Fields(users[name].Line), also...)...)
			}
		}
	}
	// work runs a bridge, a producer and workers, each as its documented user, and waits until a message in each of
	// four queues is handled. Four queues make it likely that several masters of a cluster are used.
	work := func(t *testing.T, url string) {
		s := &stack{t: t}
		as := func(name string) *bridge.Redis {
			return s.dial(strings.Replace(url, "redis://", "redis://"+name+":"+users[name].Password+"@", 1))
		}
		b, err := bridge.NewBridge(bridge.Config{Redis: as("bridge")})
		if err != nil {
			t.Fatal(err)
		}
		s.run("bridge", b.Run)
		client, err := bridge.NewClient(bridge.ClientConfig{Redis: as("producer")})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		handled := make(chan string, 10)
		for _, queue := range []string{"one", "two", "three", "four"} {
			w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: as("worker"), Queue: queue, Group: "g", Handler: tell(handled)})
			if err != nil {
				t.Fatal(err)
			}
			s.run("worker", w.Run)
			if _, err := client.Schedule(t.Context(), queue, nil, bridge.WithID(queue),
				bridge.In(20*time.Millisecond)); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			select {
			case <-handled:
			case <-time.After(20 * time.Second):
				t.Fatal("not all messages were handled")
			}
		}
	}
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		w := redistest.Sentinels(t, redistest.SentinelOptions{})
		create(t, w.Servers, alsoNeeded(t, "\\| `([^`]+)` \\| every Go program behind Sentinel \\|"))
		watcher := alsoNeeded(t, "There a Go program needs\\s+`([^`]+)`")
		for _, s := range w.Sentinels {
			s.Do(t, append([]string{"ACL", "SETUSER", "watcher", "on", ">look"}, watcher...)...)
		}
		work(t, w.URL()+"&sentinel_user=watcher&sentinel_password=look")
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.Cluster(t, 3, 0)
		create(t, c.Servers, alsoNeeded(t, "\\| `([^`]+)` \\| every Go program on a cluster \\|"))
		work(t, c.URL())
	})
}

// tell returns a handler that sends the ID of each message to a channel.
func tell(handled chan<- string) bridge.Handler {
	return func(_ context.Context, m *bridge.Message) error { handled <- m.ID; return nil }
}
