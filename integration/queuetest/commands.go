package queuetest

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// WithoutPings is an option for clients: it keeps the client from pinging idle connections, as the bridge does.
func WithoutPings(o *rueidis.ClientOption) {
	o.Dialer = net.Dialer{KeepAlive: 30 * time.Second, Timeout: time.Second}
	o.ConnWriteTimeout = 10 * time.Second
}

// Entries returns all entries of a queue's stream.
func Entries(t *testing.T, c rueidis.Client, prefix, queue string) []lua.Entry {
	t.Helper()
	reply, err := c.Do(t.Context(),
		c.B().Xrange().Key(lua.NewKeys(prefix, queue).Stream).Start("-").End("+").Build()).AsXRangeSlices()
	if err != nil {
		t.Fatal(err)
	}
	out := make([]lua.Entry, len(reply))
	for i, e := range reply {
		out[i] = lua.ParseEntry(e.ID, e.FieldValues)
	}
	return out
}

// Integer runs a command that answers with a number.
func Integer(t *testing.T, c rueidis.Client, args ...string) int64 {
	t.Helper()
	n, err := c.Do(t.Context(), c.B().Arbitrary(args...).Build()).AsInt64()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return n
}

// Text runs a command that answers with a string, or with nil for "".
func Text(t *testing.T, c rueidis.Client, args ...string) string {
	t.Helper()
	s, err := c.Do(t.Context(), c.B().Arbitrary(args...).Build()).ToString()
	if err != nil && !rueidis.IsRedisNil(err) {
		t.Fatalf("%v: %v", args, err)
	}
	return s
}

// Do runs a command, and fails the test if it returns an error.
func Do(t *testing.T, c rueidis.Client, args ...string) {
	t.Helper()
	if err := c.Do(t.Context(), c.B().Arbitrary(args...).Build()).Error(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// Now returns the time of the server's clock.
func Now(t *testing.T, c rueidis.Client) time.Time {
	t.Helper()
	now, err := c.Do(t.Context(), c.B().Time().Build()).AsIntSlice()
	if err != nil {
		t.Fatal(err)
	}
	return time.Unix(now[0], now[1]*1000)
}

// PublishCount adds a partition count of a queue to the registry, as another process does when the queue grows.
func PublishCount(t *testing.T, c rueidis.Client, prefix, queue string, count int) {
	t.Helper()
	if _, err := lua.RegisterCounts(t.Context(), c, lua.NewGlobals(prefix), map[string]lua.Counts{queue: {count}}); err != nil {
		t.Fatal(err)
	}
}

// EventuallyRegistered waits until the registry has these partition counts for a queue ("1,4"). It fails the test at
// once if the registry has any other count, because a count is not removed while the queue exists.
func EventuallyRegistered(t *testing.T, c rueidis.Client, prefix, queue, counts string) {
	t.Helper()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		got, err := c.Do(t.Context(), c.B().Hget().Key(lua.NewGlobals(prefix).Queues).Field(queue).Build()).ToString()
		for count := range strings.SplitSeq(got, ",") {
			if got != "" && !slices.Contains(strings.Split(counts, ","), count) {
				t.Fatalf("%s: the registry has %q, want %s", queue, got, counts)
			}
		}
		return got == counts, fmt.Sprintf("%s: the registry has %q, want %s; %v", queue, got, counts, err)
	})
}

// IDOf returns an ID that belongs to a partition, in a queue with these counts.
func IDOf(counts lua.Counts, partition int) string {
	for i := 0; ; i++ {
		if id := fmt.Sprint("order-", i); counts.Of(id) == partition {
			return id
		}
	}
}
