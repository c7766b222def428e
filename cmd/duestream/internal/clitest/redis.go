package clitest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Milliseconds returns the time of the server's clock plus d, in milliseconds since 1970.
func (c *CLI) Milliseconds(d time.Duration) string {
	c.T.Helper()
	r := c.Redis()
	clock, err := r.Do(c.T.Context(), r.B().Time().Build()).AsIntSlice()
	if err != nil {
		c.T.Fatal(err)
	}
	return fmt.Sprint(clock[0]*1000 + clock[1]/1000 + d.Milliseconds())
}

// Fill schedules n messages by plain commands, all due at the same time. Their IDs are the prefix followed by a number
// of five digits.
func (c *CLI) Fill(queue, prefix string, n int, due time.Time) {
	c.T.Helper()
	add := []string{"ZADD", c.Key(queue, "due")}
	bodies := []string{"HSET", c.Key(queue, "payload")}
	for i := range n {
		id := fmt.Sprintf("%s%05d", prefix, i)
		add, bodies = append(add, fmt.Sprint(due.UnixMilli()), id), append(bodies, id, "p")
	}
	c.Do(bodies...)
	c.Do(add...)
}

// Ready returns how many entries the stream of a queue has.
func (c *CLI) Ready(queue string) int64 { return c.Size("XLEN", c.Key(queue, "stream")) }

// Size returns the reply of a Redis command whose reply is a number.
func (c *CLI) Size(words ...string) int64 {
	c.T.Helper()
	m := c.Do(words...)
	n, err := m.AsInt64()
	if err != nil {
		c.T.Fatal(err)
	}
	return n
}

// Retries schedules the second attempt of a message for each group, as after a failed first attempt.
func (c *CLI) Retries(queue, id string, due time.Time, groups ...string) {
	c.T.Helper()
	k := lua.NewKeys(c.Prefix, queue)
	for _, group := range groups {
		member := lua.Member{Kind: lua.MemberRetry, ID: id, Group: group, Of: "1-1"}.String()
		c.Do("HSET", k.Payload, member, "p")
		c.Do("HSET", k.Meta, member, fmt.Sprintf(`{"id":%q,"for":%q,"attempt":"2"}`, id, group))
		c.Do("ZADD", k.Due, fmt.Sprint(due.UnixMilli()), member)
	}
}

// OneLetter creates a dead letter of message order-42 of queue q and group g by plain commands, and returns its name.
func (c *CLI) OneLetter(payload string) string {
	c.T.Helper()
	r := c.Redis()
	// The letter's group and queue must exist.
	err := r.Do(c.T.Context(),
		r.B().XgroupCreate().Key(c.Key("q", "stream")).Group("g").Id("0").Mkstream().Build()).Error()
	if err != nil && !strings.Contains(err.Error(), "BUSYGROUP") {
		c.T.Fatal(err)
	}
	letter, err := r.Do(c.T.Context(),
		r.B().Xadd().Key(c.Key("q", "dead")).Id("*").FieldValue().FieldValue("id", "order-42").
			FieldValue("payload", payload).FieldValue("attempt", "3").FieldValue("h:tenant", "acme").
			FieldValue("h:debug", "1").FieldValue("max_attempts", "7").
			FieldValue("group", "g").FieldValue("reason", "max_attempts").FieldValue("error", "oops").Build()).ToString()
	if err != nil {
		c.T.Fatal(err)
	}
	return letter
}

// Place returns where a message of queue q is. It must be in exactly one place.
func (c *CLI) Place(id string) admin.Place {
	c.T.Helper()
	var places []admin.Place
	c.JSON(&places, "show", "q", id)
	if len(places) != 1 {
		c.T.Fatalf("%+v", places)
	}
	return places[0]
}

// Letters creates six dead letters in queue q, one for each of the messages a, b and c in each of the groups g1 and g2,
// and returns them oldest first. A worker whose command fails makes them.
func (c *CLI) Letters() []admin.Letter {
	c.T.Helper()
	c.OK("queue", "set", "q", "--create", "retry_min=1ms", "retry_max=1ms", "max_attempts=1")
	c.Serve()
	// Both groups are created first. Otherwise acknowledgements of the first group would free the entries.
	for _, group := range []string{"g1", "g2"} {
		c.Do("XGROUP", "CREATE", c.Key("q", "stream"), group, "0", "MKSTREAM")
	}
	for _, id := range []string{"a", "b", "c"} {
		c.OK("schedule", "q", "--id", id, "--header", "k=v", "payload of "+id)
	}
	for group, code := range map[string]string{"g1": "1", "g2": "65"} { // 65: dead letter at once, without a retry
		w := c.Start("work", "q", "--group", group, "--", "sh", "-c", "echo oops in "+group+" >&2; exit "+code)
		redistest.Eventually(c.T, Patience, func() (bool, string) {
			out := c.Run("dead", "list", "q", "--group", group).Out // the group is unknown until its worker runs
			return strings.Count(out, "\n") == 4, out + w.Err.String()
		})
		w.Stop()
		w.Wait()
	}
	var all []admin.Letter
	for line := range strings.Lines(c.OK("dead", "list", "q", "--json")) {
		var l admin.Letter
		Decode(c.T, line, &l)
		all = append([]admin.Letter{l}, all...)
	}
	return all
}

// Do runs a plain Redis command. An error fails the test; a nil reply is none.
func (c *CLI) Do(words ...string) rueidis.RedisMessage {
	c.T.Helper()
	r := c.Redis()
	m, err := r.Do(c.T.Context(), r.B().Arbitrary(words[0]).Args(words[1:]...).Build()).ToMessage()
	if err != nil && !rueidis.IsRedisNil(err) {
		c.T.Fatalf("%q: %v", words, err)
	}
	return m
}

// InPartition runs a Redis command on a key of a partition of q.
func (c *CLI) InPartition(partition int, command, key string, args ...string) {
	c.T.Helper()
	c.Do(append([]string{command, c.Key(lua.PartitionName("q", partition), key)}, args...)...)
}

// Scheduled returns how many messages of a queue are scheduled.
func (c *CLI) Scheduled(queue string) int64 {
	c.T.Helper()
	var all []admin.QueueStats
	if c.JSON(&all, "stats"); len(all) == 0 { // the queue is unknown yet
		return 0
	}
	at := slices.IndexFunc(all, func(s admin.QueueStats) bool { return s.Queue == queue })
	return all[max(0, at)].Scheduled
}
