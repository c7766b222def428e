package migrate

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/bridge/migrate/asynq"
	"github.com/duestream/duestream/bridge/migrate/bullmq"
	"github.com/duestream/duestream/bridge/migrate/delayqueue"
	"github.com/duestream/duestream/bridge/migrate/lmstfy"
	"github.com/duestream/duestream/integration/acl"
	"github.com/duestream/duestream/integration/redistest"
)

// emigrant is a program whose jobs are moved: commands that make a job in each of its states, and how to read it.
type emigrant struct {
	jobs  [][]string
	moved int64 // how many of the jobs are moved
	open  func(ctx context.Context, c rueidis.Client) (migrate.Source, error)
}

// words splits a command at spaces.
func words(line string) []string { return strings.Fields(line) }

// lmstfyID is the ID of a job that was published without a delay.
const lmstfyID = "01M80K6PCFJX3AQJPDV000000"

// asynqTask is a task in protobuf: type (1), ID (3), queue (4), and further fields.
func asynqTask(id, further string) string { return "\n\x04mail\x1a\x01" + id + "\"\x01q" + further }

var emigrants = map[string]emigrant{
	"lmstfy": {
		jobs: [][]string{
			words("SET j/ns/q/" + lmstfyID + "1 x"), {"LPUSH", "q/ns/q", "\x02\x00\x1a\x00" + lmstfyID + "1"},
			words("SET j/ns/q/" + lmstfyID + "2 x"), {"LPUSH", "d/ns/q", "\x01\x00\x1a\x00" + lmstfyID + "2"},
			words("SET j/ns/q/" + lmstfyID + "3 x"),
			{"ZADD", "timer_set", "4000000000", "\x02\x00ns\x01\x00q\x02\x00\x1a\x00" + lmstfyID + "3"},
		},
		moved: 3,
		open: func(ctx context.Context, c rueidis.Client) (migrate.Source, error) {
			return lmstfy.New(ctx, c, lmstfy.Options{})
		},
	},
	"asynq": {
		jobs: [][]string{
			{"HSET", "asynq:{q}:t:1", "msg", asynqTask("1", "R\x10asynq:{q}:unique"), "state", "pending"},
			words("LPUSH asynq:{q}:pending 1"), words("SET asynq:{q}:unique 1"),
			{"HSET", "asynq:{q}:t:2", "msg", asynqTask("2", ""), "state", "active"},
			words("LPUSH asynq:{q}:active 2"), words("ZADD asynq:{q}:lease 4000000000 2"),
			{"HSET", "asynq:{q}:t:3", "msg", asynqTask("3", ""), "state", "scheduled"},
			words("ZADD asynq:{q}:scheduled 4000000000 3"),
			{"HSET", "asynq:{q}:t:4", "msg", asynqTask("4", ""), "state", "retry"},
			words("ZADD asynq:{q}:retry 4000000000 4"),
			{"HSET", "asynq:{q}:t:5", "msg", asynqTask("5", ""), "state", "archived"},
			words("ZADD asynq:{q}:archived 1700000000 5"),
			{"HSET", "asynq:{q}:t:6", "msg", asynqTask("6", "r\x01g"), "state", "aggregating", "group", "g"},
			words("ZADD asynq:{q}:g:g 1700000000 6"),
		},
		moved: 6,
		open: func(ctx context.Context, c rueidis.Client) (migrate.Source, error) {
			return asynq.New(ctx, c, asynq.Options{ArchivedTo: "mailer", Aggregating: true})
		},
	},
	"delayqueue": {
		jobs: [][]string{
			words("MSET dp:q:msg:1 x dp:q:msg:2 x dp:q:msg:3 x {dp:r}:msg:4 x"),
			words("HSET dp:q:retry:cnt 1 3 2 3 3 3"), words("HSET {dp:r}:retry:cnt 4 3"),
			words("ZADD dp:q:pending 4000000000 1"), words("LPUSH dp:q:ready 2"),
			words("ZADD dp:q:unack 4000000000 3"), words("LPUSH {dp:r}:retry 4"),
		},
		moved: 4,
		open: func(ctx context.Context, c rueidis.Client) (migrate.Source, error) {
			return delayqueue.New(ctx, c)
		},
	},
	"bullmq": {
		jobs: [][]string{
			words("HSET bull:q:1 name x data {} opts {} timestamp 1700000000000 deid d"), words("LPUSH bull:q:wait 1"),
			words("SET bull:q:de:d 1"),
			words("HSET bull:q:2 name x data {} opts {} timestamp 1700000000000"), words("LPUSH bull:q:active 2"),
			words("SET bull:q:2:lock token PX 600000"), words("SADD bull:q:stalled 2"),
			words("HSET bull:q:3 name x data {} opts {} timestamp 1700000000000"), words("ZADD bull:q:failed 1 3"),
			words("HSET bull:q:4 name x data {} opts {} timestamp 1700000000000 delay 9"),
			words("ZADD bull:q:delayed 8192000000000000 4"),
			words("HSET bull:q:repeat:s name x ic 2 every 10000 offset 1"), words("ZADD bull:q:repeat 4000000000000 s"),
			words("HSET bull:q:repeat:s:4000000000000 name x data {} opts {} timestamp 1700000000000 rjk s"),
			words("ZADD bull:q:delayed 16384000000000000 repeat:s:4000000000000"),
		},
		moved: 6,
		open: func(ctx context.Context, c rueidis.Client) (migrate.Source, error) {
			return bullmq.New(ctx, c, bullmq.Options{Prefix: bullmq.DefaultPrefix, FailedTo: "mailer", Schedulers: true})
		},
	},
}

// stay is the Redis of another program, which a user with some rights leaves.
type stay struct {
	t        *testing.T
	from, to *redistest.Server
	operator acl.User // of duestream's Redis
	emigrant
}

// newStay returns a stay, and the documented rights to read and to remove.
func newStay(t *testing.T, name string, e emigrant) (_ *stay, reading, removing []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations/users.md")
	if err != nil {
		t.Fatal(err)
	}
	reading = acl.Also(string(text), "`duestream migrate "+name+"`")
	removing = slices.Concat(reading, acl.Also(string(text), "`duestream migrate "+name+" --remove`"))
	if len(reading) == 0 || len(removing) == len(reading) {
		t.Fatalf("rights %q, and %q", reading, removing)
	}
	return &stay{t: t, from: redistest.Own(t), to: redistest.Own(t), operator: acl.Users(string(text))["operator"],
		emigrant: e}, reading, removing
}

// with moves the jobs as a user with these rules. It begins with the jobs of the program, and with an empty duestream.
// It returns what was moved, what the server denied to the user, and the error.
func (s *stay) with(rules []string, remove bool) (sum migrate.Tally, denied string, moveErr error) {
	s.t.Helper()
	s.begin()
	sum, moveErr = s.again(rules, remove)
	denials, err := acl.Denials(s.t.Context(), s.from.Client(s.t))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, d := range denials {
		denied += d.What + " "
	}
	return sum, denied, moveErr
}

// begin leaves the jobs of the program alone in its Redis, and empties duestream.
func (s *stay) begin() {
	s.t.Helper()
	s.from.Do(s.t, "FLUSHALL")
	s.to.Do(s.t, "FLUSHALL")
	c := s.from.Client(s.t)
	for _, line := range s.jobs {
		if err := c.Do(s.t.Context(), c.B().Arbitrary(line...).Build()).Error(); err != nil {
			s.t.Fatal(line, " ", err)
		}
	}
}

// again moves the jobs that are there.
func (s *stay) again(rules []string, remove bool) (sum migrate.Tally, _ error) {
	s.t.Helper()
	set := append([]string{"ACL", "SETUSER", "mover", "reset", "on", ">secret", "resetchannels", "-@all"}, rules...)
	s.from.Do(s.t, set...)
	s.from.Do(s.t, "ACL", "LOG", "RESET")
	old, err := bridge.Dial(s.t.Context(), strings.Replace(s.from.URL(), "redis://", "redis://mover:secret@", 1))
	if err != nil {
		return sum, err
	}
	defer old.Close()
	s.to.Do(s.t, strings.Fields(s.operator.Line)...)
	redis, err := bridge.Dial(s.t.Context(),
		strings.Replace(s.to.URL(), "redis://", "redis://operator:"+s.operator.Password+"@", 1))
	if err != nil {
		s.t.Fatal(err)
	}
	defer redis.Close()
	op := redistest.Must(admin.New(redis, ""))
	source, err := s.open(s.t.Context(), old.Client)
	if err != nil {
		return sum, err
	}
	all, err := migrate.Move(s.t.Context(), migrate.Config{From: source, To: op, Window: time.Hour, Remove: remove,
		Refused: func(queue, id string, err error) { s.t.Errorf("%s %s was refused: %v", queue, id, err) }})
	for _, tally := range all {
		sum.Moved, sum.Known = sum.Moved+tally.Moved, sum.Known+tally.Known
		sum.Removed += tally.Removed
	}
	return sum, err
}

// without leaves out each right in turn, except PING, which the client library sends after a minute without a command.
func without(rules []string) map[string][]string {
	all := map[string][]string{}
	for i, rule := range rules {
		if name := strings.TrimRight(rule, ")"); strings.HasPrefix(name, "+") && name != "+ping" {
			rest := slices.Clone(rules)
			if rest[i] = rule[len(name):]; rest[i] == "" {
				rest = slices.Delete(rest, i, i+1)
			} else { // it closed a selector
				rest[i-1] += rest[i]
				rest = slices.Delete(rest, i, i+1)
			}
			all[fmt.Sprint(i, " ", name)] = rest
		}
	}
	return all
}

// The users of docs/operations/users.md for the Redis of another program have the rights that a migration needs, and no
// others: without one of them, the migration fails. A user without the rights for --remove moves all jobs, and removes
// none. When it gets these rights, a repeated run removes them.
func TestAMigrationNeedsExactlyTheDocumentedRights(t *testing.T) {
	for name, e := range emigrants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, reading, removing := newStay(t, name, e)
			sum, denied, err := s.with(reading, false)
			redistest.Want(t, "without --remove", fmt.Sprintf("%d %d %v %s", sum.Moved, sum.Removed, err, denied),
				fmt.Sprintf("%d 0 <nil> ", e.moved))

			_, denied, err = s.with(reading, true)
			if err == nil || !strings.Contains(err.Error(), "NOPERM") || denied == "" {
				t.Errorf("without the rights to remove: %v, denied %q", err, denied)
			}
			sum, err = s.again(removing, true)
			redistest.Want(t, "repeated with the rights",
				fmt.Sprintf("%d %d %v", sum.Moved+sum.Known, sum.Removed, err), fmt.Sprintf("%d %[1]d <nil>", e.moved))

			sum, denied, err = s.with(removing, true)
			redistest.Want(t, "with --remove", fmt.Sprintf("%d %d %v %s", sum.Moved, sum.Removed, err, denied),
				fmt.Sprintf("%d %[1]d <nil> ", e.moved))
			for _, rules := range []struct {
				all    []string
				remove bool
			}{{reading, false}, {removing, true}} {
				fewer := without(rules.all)
				for _, missing := range slices.Sorted(maps.Keys(fewer)) {
					if _, denied, err := s.with(fewer[missing], rules.remove); err == nil && denied == "" {
						t.Errorf("the migration does not need %s", missing)
					}
				}
			}
		})
	}
}

// The Redis of the program is full. Its jobs are moved and removed all the same.
func TestTheRedisOfTheProgramIsFull(t *testing.T) {
	t.Parallel()
	for name, e := range emigrants {
		s, _, removing := newStay(t, name, e)
		s.begin()
		s.from.Do(t, "CONFIG", "SET", "maxmemory", "1")
		sum, err := s.again(removing, true)
		redistest.Want(t, name, fmt.Sprint(sum.Moved, sum.Removed, err), fmt.Sprint(e.moved, e.moved, nil))
	}
}
