package scheduler

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// If one key of a queue is of another type, a bridge must go on with everything that does not need this key: entries
// are freed and retried. Regression: a key of recurrences with another type stopped all of it.
func TestAKeyOfAnotherTypeStopsNobodyWhoDoesNotNeedIt(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix := s.Client(t), s.Prefix(t)
	queues := map[string]string{}
	for i, key := range lua.NewKeys(prefix, "q").All() {
		name := fmt.Sprintf("q%02d", i)
		k := lua.NewKeys(prefix, name)
		if wrong := k.All()[i]; wrong != k.Stream {
			queues[name] = key
			queuetest.Do(t, c, "XGROUP", "CREATE", k.Stream, "g", "0", "MKSTREAM")
			queuetest.Do(t, c, "XADD", k.Stream, "*", "id", "m")
			queuetest.Do(t, c, "XREADGROUP", "GROUP", "g", "c", "STREAMS", k.Stream, ">")
			queuetest.Do(t, c, "SET", wrong, "x")
			if _, err := lua.Register(t.Context(), c, lua.NewGlobals(prefix), []string{name}); err != nil {
				t.Fatal(err)
			}
		}
	}
	var mu sync.Mutex
	noticed := map[string]bool{}
	start(t, s, prefix, func(c *Config) {
		c.SurveyInterval = 100 * time.Millisecond
		c.Notice = func(queue string) {
			mu.Lock()
			defer mu.Unlock()
			noticed[queue] = true
		}
	})
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		var missing []string
		for queue, key := range queues {
			if !noticed[queue] {
				missing = append(missing, key)
			}
		}
		slices.Sort(missing)
		return len(missing) == 0, fmt.Sprint("nobody looks after entries when another type is in ", missing)
	})
}
