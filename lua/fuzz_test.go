package lua

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/big"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

// The fuzz targets of this package run scripts on the shared server. Every `go test` runs their seeds, and the inputs
// that fuzzing found (testdata/fuzz); `make fuzz` searches on.

// fuzzQueue returns a function that makes a queue for one execution. All executions share one connection and one queue,
// which is emptied between them.
func fuzzQueue(f *testing.F, s *redistest.Server) func(t *testing.T) *testQueue {
	c := s.Client(f, func(o *rueidis.ClientOption) { o.ForceSingleClient, o.PipelineMultiplex = true, -1 })
	prefix := s.Prefix(f)
	return func(t *testing.T) *testQueue {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		b := &testQueue{T: t, ctx: ctx, s: s, c: c, k: NewKeys(prefix, "q"), g: NewGlobals(prefix)}
		t.Cleanup(func() {
			defer cancel()
			b.do(append([]string{"DEL"}, keysOf(b.k)...)...)
		})
		return b
	}
}

// probe runs functions of the scripts' library alone.
func probe(libs, body string) *rueidis.Lua {
	var text strings.Builder
	for lib := range strings.FieldsSeq(libs) {
		text.WriteString(readSource("lib/" + lib + ".lua"))
	}
	return rueidis.NewLuaScript(text.String() + body)
}

// probe runs a script of probe, and returns its reply.
func (b *testQueue) probe(script *rueidis.Lua, args ...string) []string {
	b.Helper()
	reply, err := script.Exec(b.ctx, b.c, []string{b.k.Due}, args).AsStrSlice()
	if err != nil {
		b.Fatalf("%.200q: %v", args, err)
	}
	return reply
}

var textProbe = probe("base entry", `
return {tostring(is_utf8(ARGV[1])), base64(ARGV[1]), error_text(ARGV[1]), tostring(is_count(ARGV[1])), tostring(is_time(ARGV[1]))}`)

var (
	countPattern = regexp.MustCompile(`\A[1-9][0-9]{0,14}\z`)
	timePattern  = regexp.MustCompile(`\A\+?-?[0-9]+\.?[0-9]*\z`)
)

// FuzzText compares the scripts' view of any bytes with Go's own: UTF-8 and base64 decide what passes through JSON, and
// how.
func FuzzText(f *testing.F) {
	for _, seed := range []string{
		"", "plain", "ü", "世界", "\U0001f680", "\ufffd", "\uffff\ufdd0", "\U0010ffff", // noncharacters are UTF-8
		// overlong
		"\xff", "\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xf0\x80\x80\x80", "\xf0\x8f\xbf\xbf",
		"\xed\xa0\x80", "\xed\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", // surrogates, beyond the last code point
		// cut short, and nested in each other
		"\xc3", "\xe4\xb8", "\xf0\x9f\x9a", "\xc3\xc3\xbc", "\xe4\xb8\xc3\xbc\xad", "a\x00\xff", "\x00", "%z%",
		"1", "0", "01", "999999999999999", "1000000000000000", "-1", "1e3", "+1500", "1795216995000.5", "1\n", " 1", "+", "inf",
		"0x10",
		strings.Repeat("x", 1024), strings.Repeat("x", 1023) + "ü", strings.Repeat("ü", 700), strings.Repeat("x", 1024) +
			"\xbf", strings.Repeat("\xbf", 1300),
	} {
		f.Add(seed)
	}
	servers := []func(*testing.T) *testQueue{
		fuzzQueue(f, redistest.Shared(f)), fuzzQueue(f, redistest.InProcess(f)),
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, open := range servers {
			b := open(t)
			got := b.probe(textProbe, s)
			on := fmt.Sprintf("%.300q on %s: ", s, b.s.Name())
			redistest.Want(b, on+"UTF-8", got[0], fmt.Sprint(utf8.ValidString(s)))
			redistest.Want(b, on+"base64", got[1], base64.StdEncoding.EncodeToString([]byte(s)))
			redistest.Want(b, on+"count", got[3], fmt.Sprint(countPattern.MatchString(s)))
			redistest.Want(b, on+"time", got[4], fmt.Sprint(timePattern.MatchString(s)))
			cut := got[2]
			if len(cut) > MaxErrorBytes || !utf8.ValidString(cut) || len(s) <= MaxErrorBytes && len(cut) != len(s) {
				b.Fatalf("%serror text %q", on, cut)
			}
			if utf8.ValidString(s) && (!strings.HasPrefix(s, cut) || len(cut) < min(len(s), MaxErrorBytes)-utf8.UTFMax) {
				b.Fatalf("%serror text %q is not its beginning", on, cut)
			}
		}
	})
}

var lessProbe = probe("base free", `return {tostring(less(ARGV[1], ARGV[2])), tostring(less(ARGV[2], ARGV[1]))}`)

// FuzzEntryIDOrder compares the order of entry IDs in the scripts, which compare text, with that of whole numbers.
func FuzzEntryIDOrder(f *testing.F) {
	const most = 1<<64 - 1
	for _, s := range [][4]uint64{
		{0, 0, 0, 0}, {9, 0, 10, 0}, {5, 9, 5, 10}, {5, 10, 5, 9}, {1 << 53, 0, 1<<53 + 1, 0}, {most, most, most, most - 1},
		{most, 0, 1, most}, {1795216995123, 1, 1795216995123, 0},
	} {
		f.Add(s[0], s[1], s[2], s[3])
	}
	open := fuzzQueue(f, redistest.Shared(f))
	number := func(ms, seq uint64) *big.Int {
		n := new(big.Int).Lsh(new(big.Int).SetUint64(ms), 64)
		return n.Add(n, new(big.Int).SetUint64(seq))
	}
	f.Fuzz(func(t *testing.T, aMs, aSeq, bMs, bSeq uint64) {
		b := open(t)
		order := number(aMs, aSeq).Cmp(number(bMs, bSeq))
		got := b.probe(lessProbe, fmt.Sprintf("%d-%d", aMs, aSeq), fmt.Sprintf("%d-%d", bMs, bSeq))
		wantList(b, fmt.Sprintf("%d-%d and %d-%d", aMs, aSeq, bMs, bSeq), got, fmt.Sprint(order < 0), fmt.Sprint(order > 0))
	})
}

// FuzzScore: for any number that ZADD accepts as a due time, the schedule can still be read, and a due member leaves it
// with that time rounded up, as digits. A score from 1e15 on is never due, and one below 1e12 (before 2001) means now.
// Before, a wait of more than 292 years came out as negative or as next to nothing, so the drain loop spun.
func FuzzScore(f *testing.F) {
	for _, seed := range []string{
		"0", "-0", "1", "0.5", "1795216995000.25", "-inf", "+inf", "-1.5", "1e3", "1e-320", "1e15",
		"1e300", "9007199254740993", "0x1p4", "nan", "17952169951234567", "20242000000000",
	} {
		f.Add(seed)
	}
	open := fuzzQueue(f, redistest.Shared(f))
	f.Fuzz(func(t *testing.T, text string) {
		b := open(t)
		if b.try("ZADD", b.k.Due, text, "m").Error() != nil {
			return // no number to the server
		}
		score := b.dueOf("m")
		now := b.now()
		looks, err := Survey(b.ctx, b.c, []Keys{b.k}, true)
		if err == nil {
			err = looks[0].Err
		}
		if err != nil {
			b.Fatal(err)
		}
		if score < 1e15 && score > float64(now)+60_000 && (looks[0].Wait < 50*time.Second || looks[0].Overdue != 0) ||
			score <= 0 && looks[0].Wait != 0 {
			b.Fatalf("score %v at %d: wait %s, overdue %s", score, now, looks[0].Wait, looks[0].Overdue)
		}
		d := b.drain(10)
		if score > float64(now) {
			if score > float64(now)+60_000 && (d.Moved != 0 || score < 1e15 && d.Wait < 50*time.Second) {
				b.Fatalf("score %v at %d: %+v", score, now, d)
			}
			return
		}
		if d.Late < 0 || score < 1e12 && d.Late != 0 {
			b.Fatalf("score %v at %d: late by %s", score, now, d.Late)
		}
		d.Late = 0
		redistest.Want(b, "drained", d, Drained{Moved: 1, Wait: -time.Microsecond})
		exact, _ := new(big.Float).SetFloat64(max(0, score)).Int(nil)
		if score > 0 && new(big.Float).SetInt(exact).Cmp(big.NewFloat(score)) < 0 {
			exact.Add(exact, big.NewInt(1))
		}
		redistest.Want(b, "due_ms", rawField(b.raw(b.k.Stream)[0].FieldValues, FieldDue), exact.String())
	})
}

// FuzzQueueName: an accepted name can be read back from its key, and every key has it as its hash tag; a refused one is
// named with the limit.
func FuzzQueueName(f *testing.F) {
	for _, seed := range []string{"emails", "a:b.c_d-1", "", "a}b", "{a}", "emails/1", "emails\n", "ü", "\xff", "}:due",
		strings.Repeat("x", 129)} {
		f.Add("duestream", seed)
	}
	f.Add("a:{b}", "q")
	f.Add("a/b", "q}:due")
	f.Fuzz(func(t *testing.T, prefix, queue string) {
		if err := CheckPrefix(prefix); err != nil {
			checkRefusal(t, err, "prefix", prefix)
			return
		}
		if err := CheckQueue(queue); err != nil {
			checkRefusal(t, err, "queue", queue)
			return
		}
		k := NewKeys(prefix, queue)
		for _, key := range keysOf(k) {
			_, tag, _ := strings.Cut(key, "{")
			if tag, _, _ = strings.Cut(tag, "}"); tag != queue { // as the cluster specification defines it: the first braces
				t.Errorf("key %q has the hash tag %q", key, tag)
			}
		}
		for _, i := range []int{0, 1, MaxPartitions - 1} {
			key := NewKeys(prefix, PartitionName(queue, i)).Due
			if got, partition, ok := QueueOf(prefix, key); !ok || got != queue || partition != i {
				t.Errorf("%q is the schedule of %q, partition %d, %t", key, got, partition, ok)
			}
		}
	})
}

// checkRefusal checks that an error names the field, the value, of which it shows 64 bytes at most, and the rule.
func checkRefusal(t *testing.T, err error, field, value string) {
	t.Helper()
	text := err.Error()
	shown := fmt.Sprintf("%q", value)
	if len(value) > 64 {
		shown = fmt.Sprintf("%.64q", value[:64])
	}
	if !strings.HasPrefix(text, field+" "+shown) || !strings.Contains(text, ": must ") || !utf8.ValidString(text) ||
		len(text) > 600 {
		t.Errorf("%s %q is refused with %q", field, value, text)
	}
}
