package lua

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"
	"pgregory.net/rapid"

	"github.com/duestream/duestream/integration/redistest"
)

var fullSizes = flag.Bool("sizes.full", false,
	"adversarial sizes as large as they come, for figures of time: with -v -rapid.checks=300")

// One run of a script may touch fullBudget bytes, whatever is stored, and one message more, because a script always
// takes one. In these tests the budget and the stored data are divided by scaledDown, so that a search takes seconds.
const (
	scaledDown = 16
	fullBudget = 1 << 20
)

// budgetValues is how many values in the replies of its commands a run may read, for a stream with few groups: entries,
// pending entries and groups have a few values each.
const budgetValues = 60_000

// weighed is put before a script's text. It replaces redis by a table that counts the bytes and values of the script's
// commands. Its list touched has the five figures of the Go type touched, and the number of commands that the counting
// itself sends.
const weighed = `
local server, touched = redis, {0, 0, 0, 0, 0, 0}
local function weigh(v)
  touched[3] = touched[3] + 1
  if type(v) == 'string' then touched[1] = touched[1] + #v
  elseif type(v) == 'table' then for i = 1, #v do weigh(v[i]) end end
end
local function counted(call)
  return function(...)
    local args, most = {...}, 0
    for i = 1, #args do
      touched[2] = touched[2] + #tostring(args[i])
      most = args[i - 1] == 'COUNT' and tonumber(args[i]) or most
    end
    touched[4] = touched[4] + 1
    for i = 3, args[1] == 'HDEL' and #args or 0 do -- the values that HDEL deletes
      touched[5], touched[6] = touched[5] + server.call('HSTRLEN', args[2], args[i]), touched[6] + 1
    end
    if args[1] == 'XAUTOCLAIM' then touched[3] = touched[3] + 10 * most end -- pending entries that it looks at
    local reply = call(...)
    weigh(reply)
    return reply
  end
end
local account = KEYS[1] .. ':touched'
local redis = {call = counted(server.call), pcall = counted(server.pcall), error_reply = server.error_reply, status_reply = server.status_reply,
  sha1hex = server.sha1hex}
local function script()
`

const weighedEnd = `
end
local reply = script()
server.call('SET', account, table.concat(touched, ' '))
return reply
`

// touched has the figures of one run of a script: bytes of the replies of its commands, bytes of their arguments,
// values in the replies, commands, and bytes of the hash values that the run deleted.
type touched struct{ read, written, values, commands, freed int }

// scales is a client that measures each script that it runs.
type scales struct {
	rueidis.Client
	texts map[string]string // by SHA

	mu   sync.Mutex
	runs []weighing
}

// weighing has the figures of one run.
type weighing struct {
	touched
	script string
	usec   int // µs of processor time; the measurement is included
	args   int // bytes of the call's keys and arguments
}

// newScales returns a client that runs each script with a budget of that many bytes instead of 1 MiB.
func newScales(c rueidis.Client, budget int) *scales {
	s := &scales{Client: c, texts: map[string]string{}}
	for _, one := range scripts() {
		source := strings.Replace(one.source, "local MOST_BYTES = 1048576", fmt.Sprint("local MOST_BYTES = ", budget), 1)
		s.texts[one.sha] = "-- " + one.name + "\n" + weighed + source + weighedEnd
	}
	return s
}

func (s *scales) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	words := cmd.Commands()
	if !strings.HasPrefix(words[0], "EVALSHA") || s.texts[words[1]] == "" {
		return s.Client.Do(ctx, cmd)
	}
	text, args := s.texts[words[1]], 0
	for _, word := range words[3:] {
		args += len(word)
	}
	account, b := words[3]+":touched", s.Client.B()
	replies := s.DoMulti(ctx,
		b.Arbitrary("INFO", "cpu").Build(),
		b.Arbitrary("CONFIG", "RESETSTAT").Build(),
		b.Arbitrary("EVAL", text).Args(words[2:]...).Build(),
		b.Arbitrary("INFO", "commandstats").Build(),
		b.Arbitrary("INFO", "cpu").Build(),
		b.Arbitrary("GET").Keys(account).Build(),
		b.Arbitrary("DEL").Keys(account).Build())
	w := weighing{script: strings.TrimPrefix(text[:strings.IndexByte(text, '\n')], "-- "), args: args}
	w.usec = processor(replies[4]) - processor(replies[0])
	stats, _ := replies[3].ToString()
	inner, extra := 0, 0
	for line := range strings.Lines(stats) {
		var calls, usec int
		name, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		if n, _ := fmt.Sscanf(rest, "calls=%d,usec=%d", &calls, &usec); n != 2 {
			continue
		}
		switch name {
		case "cmdstat_eval", "cmdstat_config|resetstat":
		default:
			inner += calls
		}
	}
	if text, err := replies[5].ToString(); err == nil {
		_, _ = fmt.Sscan(text, &w.read, &w.written, &w.values, &w.commands, &w.freed, &extra)
		// The server also counts the SET of the account. If the two counts differ, judge reports it.
		if inner != w.commands+extra+1 {
			w.commands = -inner
		}
	}
	s.mu.Lock()
	s.runs = append(s.runs, w)
	s.mu.Unlock()
	return replies[2]
}

// processor returns the processor time of the server's main thread, in µs. Unlike the time that passes, it does not
// grow when other programs use the machine.
func processor(info rueidis.RedisResult) int {
	text, _ := info.ToString()
	total := 0.0
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if strings.HasSuffix(name, "_main_thread") {
			seconds, _ := strconv.ParseFloat(value, 64)
			total += 1e6 * seconds
		}
	}
	return int(total)
}

// take returns the weighings since the last call.
func (s *scales) take() []weighing {
	s.mu.Lock()
	defer s.mu.Unlock()
	runs := s.runs
	s.runs = nil
	return runs
}

// pad returns a short text for which build puts n bytes into a command, so that the test need not send them.
func pad(n int) string { return fmt.Sprintf("\x01%d;", n) }

const builder = `
local kib = string.rep('x', 1024)
for _, words in ipairs(cjson.decode(ARGV[1])) do
  for i = 2, #words do
    words[i] = string.gsub(words[i], '\1(%d+);', function(n)
      return string.rep(kib, math.floor(n / 1024)) .. string.sub(kib, 1, n % 1024)
    end)
  end
  redis.call(unpack(words))
end`

// build runs commands in scripts of 500 commands each, and replaces what pad returned.
func (b *testQueue) build(commands ...[]string) {
	b.Helper()
	for some := range slices.Chunk(commands, 500) {
		text, err := json.Marshal(some)
		if err != nil {
			b.Fatal(err)
		}
		b.do("EVAL", builder, "0", string(text))
	}
}

// ordeal is one drawn state, and the sizes that the script on it may touch beyond the budget.
type ordeal struct {
	*rapid.T
	b       *testQueue
	largest int  // bytes of the largest message (member, payload and meta) or entry
	longest int  // bytes of the longest member of the schedule
	groups  int  // groups of the stream
	keyed   bool // whether the scheduled messages have an ordering key
	scale   *scales
	budget  int
	bucket  int // bytes that one step of a scan may return at most
}

// seen notes the bytes of a stored member, and of its payload and meta or of an entry.
func (o *ordeal) seen(member, rest int) {
	o.largest, o.longest = max(o.largest, member+rest), max(o.longest, member)
}

// size draws the size of something: mostly small, and sometimes so large that few fit into the budget.
func (o *ordeal) size(what string) int {
	if size := rapid.SampledFrom([]int{0, 0, 1, 1, 2, 8, 50, 300, 700, 1000, 3000}).Draw(o.T, what); size > 2 {
		return size * o.budget / 1000
	} else {
		return 10 * size
	}
}

// number draws a number from least to most.
func (o *ordeal) number(what string, least, most int) int {
	return rapid.IntRange(least, most).Draw(o.T, what)
}

func (o *ordeal) flip(what string) bool { return rapid.Bool().Draw(o.T, what) }

// sizes draws n sizes in a few runs, because small ones before a large one fool limits. Together they are not too large
// for a test.
func (o *ordeal) sizes(what string, n int) []int {
	list, left := make([]int, 0, n), 24*o.budget
	for len(list) < n {
		size, run := o.size(what), o.number("run of "+what, 1, 60)
		for range min(run, n-len(list)) {
			if size > left {
				size = 10
			}
			left -= size
			list = append(list, size)
		}
	}
	return list
}

// worst keeps the largest figures of a search for each script.
type worst struct {
	mu   sync.Mutex
	runs map[string]weighing
}

func (w *worst) note(one weighing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.runs[one.script]
	w.runs[one.script] = weighing{
		script: one.script, usec: max(old.usec, one.usec), args: max(old.args, one.args),
		touched: touched{max(old.read, one.read), max(old.written, one.written), max(old.values, one.values),
			max(old.commands, one.commands), max(old.freed, one.freed)},
	}
}

// G7: no script touches more than its budget and one message, and none looks at more than its budget of entries times
// groups, whatever is stored and whatever groups hold. A search draws the states; -rapid.checks=1000 makes it longer,
// and -v shows the maximum of each script. Before, some runs took a second and a half: limits were checked after
// reading, or held for one step of many.
func TestNoScriptTouchesMoreThanItsBudget(t *testing.T) {
	t.Parallel()
	budget := fullBudget / scaledDown
	if *fullSizes {
		budget = fullBudget
	}
	isSet := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { isSet[f.Name] = true })
	for name, value := range map[string]string{
		"rapid.checks":     "15",
		"rapid.shrinktime": "3s",
		"rapid.nofailfile": "true",
	} {
		if before := flag.Lookup(name).Value.String(); !isSet[name] {
			t.Cleanup(func() { _ = flag.Set(name, before) })
			_ = flag.Set(name, value)
		}
	}
	server := redistest.Own(t)
	most := worst{runs: map[string]weighing{}}
	cases := ordeals()
	for _, s := range scripts() {
		if cases[s.name] == nil {
			t.Errorf("no adversarial sizes for %s", s.name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) {
			b := newTestQueue(t, server)
			b.ctx = t.Context()
			scale := newScales(b.c, budget)
			rapid.Check(t, func(rt *rapid.T) {
				b.do("FLUSHALL", "ASYNC")
				o := &ordeal{T: rt, b: b, scale: scale, budget: budget}
				cases[name](o)
				for i, one := range scale.take() {
					most.note(one)
					o.judge(name, i+1, one)
				}
			})
		})
	}
	for _, name := range slices.Sorted(maps.Keys(most.runs)) {
		one := most.runs[name]
		t.Logf("%-14s at most: read %8d bytes, freed %9d, looked at %6d values, %5d commands, %7.1f ms", name, one.read,
			one.freed, one.values, one.commands, float64(one.usec)/1000)
	}
}

// judge compares one run of a script with its budget.
func (o *ordeal) judge(name string, call int, one weighing) {
	if one.commands < 0 {
		o.Fatalf("%s: the server counts %d commands, the scales others", name, -one.commands-1)
	}
	// A script may read one page of 16 members, because no command tells how long they are; the earliest members of the
	// schedule are among these. 32 bytes a value are for the names and IDs of groups, consumers and entries.
	limit := o.budget + o.largest + 16*o.longest + o.bucket + 32*one.values
	if one.read > limit {
		o.Errorf("%s, call %d: %s read %d bytes, more than %d", name, call, one.script, one.read, limit)
	}
	if limit := 8 * (limit + one.args); one.written > limit {
		o.Errorf("%s, call %d: %s wrote %d bytes, more than %d", name, call, one.script, one.written, limit)
	}
	// Freeing a MiB costs at most a sixteenth of moving one.
	if limit := 16*o.budget + o.largest + o.bucket; one.freed > limit {
		o.Errorf("%s, call %d: %s freed %d bytes, more than %d", name, call, one.script, one.freed, limit)
	}
	if limit := budgetValues + 40*o.groups; one.values > limit {
		o.Errorf("%s, call %d: %s looked at %d values, more than %d", name, call, one.script, one.values, limit)
	}
}
