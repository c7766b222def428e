package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Paused queues with overdue messages, and queues with entries that nobody reads, cost a bridge no more requests than
// idle queues (guarantee G8): at most two a second. Regression: a bridge drained each paused queue in vain at every
// survey, and checked each unread entry every few seconds. With 240 such queues, it made 49 or 61 requests a second.
func TestG8PausedQueuesAndUnreadEntriesCostNothing(t *testing.T) {
	t.Parallel()
	for name, fill := range map[string]func(s *stack, k lua.Keys){
		"paused": func(s *stack, k lua.Keys) {
			s.raw("HSET", k.Policy, "held", "1")
			s.raw("ZADD", k.Due, "1", "m")
		},
		"unread": func(s *stack, k lua.Keys) {
			s.raw("XADD", k.Stream, "*", "id", "m", "payload", "", "attempt", "1", "due_ms", "1")
			s.raw("XGROUP", "CREATE", k.Stream, "nobody", "0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Own(t)
			s := newStack(t, server)
			const queues, bridges = 240, 2
			for i := range queues {
				queue := fmt.Sprintf("queue-%03d", i)
				fill(s, lua.NewKeys(s.prefix, queue))
				s.raw("HSETNX", lua.NewGlobals(s.prefix).Queues, queue, "1")
			}
			for range bridges {
				s.bridge(quick())
			}
			monitor := server.Monitor(t)
			redistest.Eventually(t, time.Minute, func() (bool, string) {
				rate := requestsIn(monitor, 5*time.Second)
				t.Logf("%.1f requests a second: %v", rate, monitor.Commands())
				return rate <= 2*bridges, fmt.Sprintf("%.1f requests a second of %d bridges", rate, bridges)
			})
			if name != "paused" {
				return
			}
			k := lua.NewKeys(s.prefix, "queue-007")
			s.raw("HDEL", k.Policy, "held") // resumes the queue without waking a bridge, so the next survey must notice it
			redistest.Eventually(t, 10*time.Second, func() (bool, string) {
				return s.number("XLEN", k.Stream) == 1,
					"not drained after it was resumed"
			})
		})
	}
}
