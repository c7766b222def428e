package doctor_test

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// hashOfC stands for consumer c in the times since which entries are held: the first eight digits of the SHA-1 of "c".
const hashOfC = "84a51684"

// waitsForKey is added to the due time of a message that waits for its ordering key, in its score.
const waitsForKey int64 = 4_000_000_000_000_000

// largest is the largest possible entry ID.
const largest = "18446744073709551615-18446744073709551615"

// plant is a change of a sound queue, and the codes that the doctor must report after it.
type plant struct {
	codes string // sorted; "" = the doctor must report nothing, because the change is no defect
	name  string
	do    func(p *patient)
}

// defects are planted one at a time, each in a sound queue of its own.
var defects = []plant{
	{"", "nothing", func(*patient) {}},
	{"", "a queue with partitions", func(p *patient) {
		p.queue(queue + "/1")
		p.do("HSET", p.shared.Queues, queue, "1,2")
	}},
	{"", "a retry", func(p *patient) {
		p.do("HSET", p.keys.Meta, retry("g"), `{"id":"id","for":"g","attempt":"2"}`)
		p.do("ZADD", p.keys.Due, p.in(time.Hour), retry("g"))
	}},
	{"", "access tokens of a gateway", func(p *patient) {
		p.do("HSET", p.shared.Tokens, "digest", "{}")
		p.do("SET", p.shared.Bucket("digest"), "1")
	}},
	{"", "a record of changed settings, which expires", func(p *patient) {
		p.do("XADD", p.keys.Changes, "*", "setting", "rate")
		p.do("EXPIRE", p.keys.Changes, "1000")
	}},
	{"", "a result, a record of an effect, and a rate of a group", func(p *patient) {
		p.do("SET", p.keys.Result("g", "id}:due"), "5 1 1-1\n")
		p.do("SET", p.keys.Once("g", "id}:due"), "5 done a")
		p.do("SET", p.keys.GroupRate("g"), "1 1")
	}},
	{"D201", "no bridge", func(p *patient) { p.stopHeart() }},
	{"D201", "a heartbeat ahead of the clock", func(p *patient) {
		p.stopHeart()
		p.do("ZADD", p.shared.Bridges, p.in(time.Hour), heart+" web-1 7 v1")
	}},
	{"D201", "a name that no bridge wrote", func(p *patient) {
		p.stopHeart()
		p.do("ZADD", p.shared.Bridges, p.in(0), "\x1b[2J") // an escape sequence that clears a terminal
	}},
	{"D210", "a bridge of another level", func(p *patient) {
		p.do("ZADD", p.shared.Bridges, p.in(4*time.Second), heart)
	}},
	{"D202", "no wake token", func(p *patient) { p.do("DEL", p.keys.Wake) }},
	{"D203", "superfluous wake token", func(p *patient) { p.do("XADD", p.keys.Wake, "*", "a", "b") }},
	{"D203", "superfluous wake token of all queues", func(p *patient) {
		p.do("XADD", p.shared.Wake, "*", "a", "b")
		p.do("XADD", p.shared.Wake, "*", "a", "b")
	}},
	{"D204", "unregistered", func(p *patient) { p.queue("other") }},
	{"D204", "unregistered, with partitions", func(p *patient) { p.queue("other"); p.queue("other/1") }},
	{"D205", "partition counts that cannot be read", func(p *patient) { p.do("HSET", p.shared.Queues, queue, "1,x") }},
	{"D206", "partition beyond the registered counts", func(p *patient) {
		k := lua.NewKeys(p.config.Prefix, queue+"/3")
		p.do("ZADD", k.Due, p.in(time.Hour), "a")
		p.do("XADD", k.Wake, "*", "due_ms", "1")
	}},
	{"D207", "partition without a group", func(p *patient) {
		p.do("XGROUP", "DESTROY", p.queue(queue+"/1").Stream, "g")
		p.do("HSET", p.shared.Queues, queue, "1,2")
	}},
	{"D208 D503", "partition with other settings", func(p *patient) {
		p.queue(queue + "/1")
		p.do("HSET", p.shared.Queues, queue, "1,2")
		p.do("HSET", p.keys.Policy, "max_attempts", "3")
	}},
	{"D209", "foreign keys", func(p *patient) {
		p.do("SET", p.config.Prefix+":foo", "x")
		p.do("SET", p.config.Prefix+":{emails}:foo", "x")
	}},
	{"D301", "wrong type of the dedup windows", func(p *patient) { p.do("SET", p.keys.Seen, "x") }},
	{"D301", "wrong type of the schedule", func(p *patient) {
		p.do("DEL", p.keys.Payload, p.keys.Meta)
		p.do("SET", p.keys.Due, "x")
	}},
	{"D301", "wrong type of the stream", func(p *patient) { p.do("SET", p.keys.Stream, "x") }},
	{"D301", "wrong type of the access tokens", func(p *patient) { p.do("SET", p.shared.Tokens, "x") }},
	{"D301", "wrong type of the defaults", func(p *patient) { p.do("SET", p.shared.Defaults, "x") }},
	{"D302", "expiry of the payloads", func(p *patient) { p.do("EXPIRE", p.keys.Payload, "1000") }},
	{"D302", "expiry of the registry", func(p *patient) { p.do("EXPIRE", p.shared.Queues, "1000") }},
	{"D303", "retry without meta", func(p *patient) { p.do("ZADD", p.keys.Due, p.in(time.Hour), retry("g")) }},
	{"D304", "meta with a number", func(p *patient) { p.do("HSET", p.keys.Meta, "order", `{"max_attempts":5}`) }},
	{"D304", "meta that is no JSON", func(p *patient) { p.do("HSET", p.keys.Meta, "order", `{`) }},
	{"D304", "empty member", func(p *patient) { p.do("ZADD", p.keys.Due, p.in(time.Hour), "") }},
	{"D304", "member that is not UTF-8", func(p *patient) { p.do("ZADD", p.keys.Due, p.in(time.Hour), "\xff") }},
	{"D305", "payload without member", func(p *patient) { p.do("HSET", p.keys.Payload, "orphan", "x") }},
	{"D305", "many metas without member", func(p *patient) {
		args := []string{"HSET", p.keys.Meta}
		for i := range 3000 {
			args = append(args, fmt.Sprint("orphan-", i), `{"a":"b"}`)
		}
		p.do(args...)
	}},
	{"D306", "due time in seconds", func(p *patient) { p.do("ZADD", p.keys.Due, fmt.Sprint(time.Now().Unix()), "a") }},
	{"D307", "due times that never come", func(p *patient) { p.do("ZADD", p.keys.Due, "1e15", "a", "inf", "b") }},
	{"D308", "due in centuries", func(p *patient) { p.do("ZADD", p.keys.Due, "20000000000000", "a") }},
	{"D309", "overdue", func(p *patient) { p.do("ZADD", p.keys.Due, p.in(-time.Minute), "a") }},
	{"D309", "due at minus infinity", func(p *patient) { p.do("ZADD", p.keys.Due, "-inf", "a") }},
	{"D310", "overdue in a held queue", func(p *patient) {
		p.do("HSET", p.keys.Policy, "held", "1")
		p.do("ZADD", p.keys.Due, p.in(-time.Minute), "a")
	}},
	{"D311", "retry for a group that does not exist", func(p *patient) {
		p.do("HSET", p.keys.Meta, retry("gone"), `{"id":"id","for":"gone","attempt":"2"}`)
		p.do("ZADD", p.keys.Due, p.in(time.Hour), retry("gone"))
	}},
	{"D313", "a place in line that no message waits in", func(p *patient) {
		p.do("ZADD", p.keys.Turns, "0", "k\x1fwait\x1f0000000000000005\x1fgone")
	}},
	{"", "a place in line that a message waits in", func(p *patient) {
		p.do("ZADD", p.keys.Turns, "0", "k\x1fwait\x1f1795216995000\x1fa", "0", "k\x1fbusy\x1f5-0")
		p.do("HSET", p.keys.Meta, "a", `{"key":"k"}`)
		p.do("ZADD", p.keys.Due, fmt.Sprint(waitsForKey+1_795_216_995_000), "a") // the time in the place above
	}},
	{"D314", "a recurrence that nobody plans", func(p *patient) {
		spec := `{"every_ms":1000,"missed":"once","overlap":"allow"}`
		text := fmt.Sprint(lua.SpecVersion(spec), " times ", p.in(-2*time.Hour), "-", p.in(-time.Hour), " 5 ")
		p.do("HSET", p.keys.Recurring, "tick", spec)
		p.do("HSET", p.keys.Planned, "tick", text, "", "1")
	}},
	{"D315", "messages that wait for their key, while no live bridge serves keys", func(p *patient) {
		p.stopHeart()
		p.do("ZADD", p.shared.Bridges, p.in(4*time.Second), heart)
		p.do("HSET", p.keys.Meta, "keyed", `{"key":"k"}`)
		p.do("ZADD", p.keys.Due, fmt.Sprint(waitsForKey+p.now(0)), "keyed")
	}},
	{"D401", "entry without a group",
		func(p *patient) { p.do("XGROUP", "DESTROY", p.keys.Stream, "g"); p.entry(p.keys, 0) }},
	{"D402", "group without a consumer", func(p *patient) {
		p.do("XGROUP", "DELCONSUMER", p.keys.Stream, "g", "c")
		p.entry(p.keys, 2*time.Minute)
	}},
	{"D415", "group with a target, and without a consumer", func(p *patient) {
		p.do("XGROUP", "DELCONSUMER", p.keys.Stream, "g", "c")
		p.do("HSET", p.keys.Push, "g", "{}")
		p.entry(p.keys, 2*time.Minute)
	}},
	{"D404", "entry that nobody read for two hours", func(p *patient) { p.entry(p.keys, 2*time.Hour) }},
	{"", "entry that was read late and is pending",
		func(p *patient) { p.entry(p.keys, 2*time.Hour); p.read(p.keys, "c") }},
	{"D405", "old pending", func(p *patient) {
		p.entry(p.keys, 2*time.Hour)
		id := p.entry(p.keys, 0)
		p.read(p.keys, "c")
		p.do("XACK", p.keys.Stream, "g", id)
		p.do("XDEL", p.keys.Stream, id)
	}},
	{"D406", "pending entry whose stream entry was deleted", func(p *patient) {
		id := p.entry(p.keys, 0)
		p.read(p.keys, "c")
		p.do("XDEL", p.keys.Stream, id)
	}},
	{"D407", "not reclaimed", func(p *patient) {
		p.do("HSET", p.keys.Policy, "visibility_ms", "100")
		redistest.Eventually(p.t, 10*time.Second, func() (bool, string) { // bridges wait after a start of the server
			_, uptime, _ := strings.Cut(fmt.Sprint(p.do("INFO", "server").ToString()), "uptime_in_seconds:")
			return !strings.HasPrefix(uptime, "0") && !strings.HasPrefix(uptime, "1\r"), "the server has just started"
		})
		id := p.entry(p.keys, 0)
		p.read(p.keys, "c")
		p.do("XCLAIM", p.keys.Stream, "g", "c", "0", id, "IDLE", "600000", "JUSTID")
	}},
	{"D413", "held for long, and extended", func(p *patient) {
		id := p.entry(p.keys, 10*time.Minute)
		p.read(p.keys, "c")
		p.do("HSET", p.keys.Calm, lua.HeldField("g"), "- "+id+"="+p.in(-5*time.Minute)+"/"+hashOfC)
	}},
	{"D413", "held for longer than usual", func(p *patient) {
		id := p.entry(p.keys, 10*time.Minute)
		p.read(p.keys, "c")
		p.do("HSET", p.keys.Calm, lua.HeldField("g"), "200 "+id+"="+p.in(-80*time.Second)+"/"+hashOfC)
	}},
	{"", "held for as long as usual", func(p *patient) {
		id := p.entry(p.keys, 10*time.Minute)
		p.read(p.keys, "c")
		p.do("HSET", p.keys.Calm, lua.HeldField("g"), "60000 "+id+"="+p.in(-5*time.Minute)+"/"+hashOfC)
	}},
	{"D412", "the largest ID in the stream", func(p *patient) {
		p.do("XADD", p.keys.Stream, largest, "id", "a")
		p.do("XDEL", p.keys.Stream, largest)
	}},
	{"D412", "an ID of next week in the dead letters", func(p *patient) {
		id := strconv.FormatInt(time.Now().Add(7*24*time.Hour).UnixMilli(), 10) + "-1"
		p.do("XADD", p.keys.Dead, id, "id", "a")
		p.do("XDEL", p.keys.Dead, id)
	}},
	{"D412", "the largest ID among the wake tokens of all queues",
		func(p *patient) { p.do("XADD", p.shared.Wake, "MAXLEN", "1", largest, "a", "b") }},
	{"D414", "the largest ID in the history", func(p *patient) { p.do("XADD", p.keys.History, largest, "t", "1") }},
	{"D408", "pending for the reclaimer", func(p *patient) { p.entry(p.keys, 0); p.read(p.keys, lua.ReclaimConsumer) }},
	{"D409", "a hundred idle consumers", func(p *patient) {
		for i := range 100 {
			p.do("XGROUP", "CREATECONSUMER", p.keys.Stream, "g", fmt.Sprint("gone-", i))
		}
		p.config.Idle = 50 * time.Millisecond
		since := time.Now()
		redistest.Eventually(p.t, time.Second, func() (bool, string) { return time.Since(since) > 2*p.config.Idle, "" })
	}},
	{"D410", "acknowledged entry that was not freed", func(p *patient) {
		id := p.entry(p.keys, 0)
		p.read(p.keys, "c")
		p.do("XACK", p.keys.Stream, "g", id)
	}},
	{"D410", "acknowledged entry that was not freed, after a pending one", func(p *patient) {
		p.entry(p.keys, time.Second)
		id := p.entry(p.keys, 0)
		p.read(p.keys, "c")
		p.do("XACK", p.keys.Stream, "g", id)
	}},
	{"D411", "a group without a name", func(p *patient) { p.do("XGROUP", "CREATE", p.keys.Stream, "", "$") }},
	{"D411", "a group whose name is not UTF-8", func(p *patient) { p.do("XGROUP", "CREATE", p.keys.Stream, "\xff", "$") }},
	{"D501", "settings out of their limits", func(p *patient) {
		p.do("HSET", p.keys.Policy, "visibility_ms", "5", "group:g:max_attempts", "many")
	}},
	{"D501 D503", "longest retry below the shortest",
		func(p *patient) { p.do("HSET", p.shared.Defaults, "retry_min_ms", "100", "retry_max_ms", "10") }},
	{"D502", "misspelt setting",
		func(p *patient) { p.do("HSET", p.keys.Policy, "visibilty_ms", "5000", "group:g:held", "1") }},
	{"D502", "hold in the defaults of all queues", func(p *patient) { p.do("HSET", p.shared.Defaults, "held", "1") }},
	{"D503", "policy that gives up early", func(p *patient) { p.do("HSET", p.keys.Policy, "max_attempts", "10") }},
	{"D511", "dedup windows that ended", func(p *patient) {
		p.do("ZADD", p.keys.Seen, p.in(-time.Hour), "a", p.in(time.Hour), "b")
	}},
	// A bridge tidies one quiet partition in 30 s, so it comes to each of 64 partitions within 32 minutes.
	{"", "a dedup window that ended 40 minutes ago, in a queue of 64 partitions", func(p *patient) {
		for i := 1; i < 64; i++ {
			p.queue(lua.PartitionName(queue, i))
		}
		p.do("HSET", p.shared.Queues, queue, "1,64")
		p.do("ZADD", p.keys.Seen, p.in(-40*time.Minute), "a")
	}},
	{"D512", "dedup window that ends in 20 years", func(p *patient) {
		p.do("ZADD", p.keys.Seen, p.in(20*365*24*time.Hour), "a")
	}},
	{"D521", "many dead letters", func(p *patient) {
		for range 1000 {
			p.do("XADD", p.keys.Dead, "*", "id", "a", "payload", "", "reason", "expired", "dead_ms", "1")
		}
	}},
	{"D522", "old dead letter", func(p *patient) {
		p.do("XADD", p.keys.Dead, p.in(-8*24*time.Hour), "id", "a", "payload", "", "reason", "expired", "dead_ms", "1")
	}},
	{"D523", "dead letter without its fields", func(p *patient) { p.do("XADD", p.keys.Dead, "*", "foo", "bar") }},
	{"D524", "fresh dead letter", func(p *patient) {
		p.do("XADD", p.keys.Dead, p.in(-4*time.Minute), "id", "a", "payload", "", "reason", "expired", "dead_ms", "1")
	}},
	{"D201 D305 D306", "three defects at once", func(p *patient) {
		p.stopHeart()
		p.do("HSET", p.keys.Payload, "orphan", "x")
		p.do("ZADD", p.keys.Due, fmt.Sprint(time.Now().Unix()), "a")
	}},
}
