package lua

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/integration/redistest"
)

func TestLimits(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	headers := func(n int, value string) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprintf("%02d", i)] = value
		}
		return m
	}
	for _, c := range []struct {
		name  string
		err   error
		field string // "" = accepted
		rule  string // part of the rule
	}{
		{"queue", CheckQueue("emails.eu:1_a-B"), "", ""},
		{"queue of 128", CheckQueue(long(128)), "", ""},
		{"queue of 129", CheckQueue(long(129)), "queue", "128"},
		{"queue empty", CheckQueue(""), "queue", "1 to 128"},
		{"queue with a brace", CheckQueue("a}b"), "queue", "A-Z"},
		{"queue like a partition", CheckQueue("emails/1"), "queue", "A-Z"},
		{"queue with a newline at the end", CheckQueue("emails\n"), "queue", "A-Z"},
		{"queue with a space", CheckQueue("a b"), "queue", "A-Z"},
		{"queue not ASCII", CheckQueue("ü"), "queue", "A-Z"},
		{"prefix", CheckPrefix("my/app:dev"), "", ""},
		{"prefix with a brace", CheckPrefix("a{b"), "prefix", "A-Z"},
		{"prefix empty", CheckPrefix(""), "prefix", "1 to"},
		{"prefix too long", CheckPrefix(long(MaxPrefixBytes + 1)), "prefix", fmt.Sprint(MaxPrefixBytes)},
		{"group", CheckGroup("billing/eu {1} ü %"), "", ""},
		{"group empty", CheckGroup(""), "group", "empty"},
		{"group of 257", CheckGroup(long(257)), "group", "256"},
		{"group with NUL", CheckGroup("a\x00"), "group", "control"},
		{"group with the separator", CheckGroup("a" + Separator), "group", "control"},
		{"consumer not UTF-8", CheckConsumer("\xff"), "consumer", "UTF-8"},
		{"consumer with DEL", CheckConsumer("a\x7f"), "consumer", "control"},
		{"id", CheckID("order-42 世界"), "", ""},
		{"id of 256", CheckID(long(256)), "", ""},
		{"id of 257", CheckID(long(257)), "id", "256"},
		{"id with the separator", CheckID("a" + Separator + "b"), "id", "control"},
		{"id empty", CheckID(""), "id", "empty"},
		{"id not UTF-8", CheckID("a\xc3"), "id", "UTF-8"},
		{"payload", CheckPayload(make([]byte, MaxPayloadBytes)), "", ""},
		{"payload empty", CheckPayload(nil), "", ""},
		{"payload too large", CheckPayload(make([]byte, MaxPayloadBytes+1)), "payload", fmt.Sprint(MaxPayloadBytes)},
		{"headers", CheckHeaders(headers(64, "v")), "", ""},
		{"no headers", CheckHeaders(nil), "", ""},
		{"header values may hold anything that is text", CheckHeaders(map[string]string{"a": "\x00\n ü"}), "", ""},
		{"65 headers", CheckHeaders(headers(65, "v")), "headers", "64"},
		{"header name empty", CheckHeaders(map[string]string{"": "v"}), "header name", "empty"},
		{"header name too long", CheckHeaders(map[string]string{long(129): "v"}), "header name", "128"},
		{"header value not UTF-8", CheckHeaders(map[string]string{"bin": "\xff"}), "header bin", "UTF-8"},
		{"header value too long", CheckHeaders(map[string]string{"big": long(MaxHeaderValueBytes + 1)}), "header big", "8192"},
		{"headers too large together", CheckHeaders(headers(5, long(8000))), "headers", "together"},
		{"delay", CheckDelay("delay", time.Hour), "", ""},
		{"delay negative", CheckDelay("delay", -1), "delay", "between 0"},
		{"delay of eleven years", CheckDelay("delay", 11*365*24*time.Hour), "delay", "between 0"},
		{"time", CheckTime("due", time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)), "", ""},
		{"time in seconds", CheckTime("due", time.UnixMilli(1_795_216_995)), "due", "2001"},
		{"time zero", CheckTime("due", time.Time{}), "due", "2001"},
		{"time in microseconds", CheckTime("due", time.UnixMilli(1_795_216_995_000_000)), "due", "2286"},
		{"max_attempts", CheckMaxAttempts(1), "", ""},
		{"max_attempts 0", CheckMaxAttempts(0), "max_attempts", "between 1"},
		{"max_attempts huge", CheckMaxAttempts(MaxAttemptsLimit + 1), "max_attempts", "1000000"},
	} {
		var invalid *InvalidError
		switch {
		case c.field == "":
			if c.err != nil {
				t.Errorf("%s: refused: %v", c.name, c.err)
			}
		case !errors.As(c.err, &invalid) || !errors.Is(c.err, ErrInvalid):
			t.Errorf("%s: error %v", c.name, c.err)
		case invalid.Field != c.field || !strings.Contains(invalid.Rule, c.rule):
			t.Errorf("%s: field %q, rule %q, want %q, %q", c.name, invalid.Field, invalid.Rule, c.field, c.rule)
		case len(c.err.Error()) > 400 || !utf8.ValidString(c.err.Error()) || strings.ContainsAny(c.err.Error(), "\n\x00"):
			t.Errorf("%s reads %q", c.name, c.err)
		}
	}
}

// An error shows at most 64 bytes of an invalid value, quoted, so that no value can fill or forge a log.
func TestInvalidCutsTheValue(t *testing.T) {
	for value, text := range map[string]string{
		"short":                          `id "short": rule 7`,
		"\n\x00":                         `id "\n\x00": rule 7`,
		strings.Repeat("a", 64):          `id "` + strings.Repeat("a", 64) + `": rule 7`,
		strings.Repeat("a", 1<<20):       `id "` + strings.Repeat("a", 64) + `"… (1048576 bytes): rule 7`,
		strings.Repeat("a", 63) + "üüüü": `id "` + strings.Repeat("a", 63) + `\xc3"… (71 bytes): rule 7`,
	} {
		redistest.Want(t, "error", Invalid("id", value, "rule %d", 7).Error(), text)
	}
}

// CutText returns at most 1,024 bytes, and valid UTF-8: it does not cut a character in two.
func TestCutText(t *testing.T) {
	for in, out := range map[string]string{
		"": "", "plain": "plain", "a\xffb": "a?b", "\xff\xfe\xfd": "?",
		strings.Repeat("x", 1024):            strings.Repeat("x", 1024),
		strings.Repeat("x", 1025):            strings.Repeat("x", 1024),
		"x" + strings.Repeat("ü", 600):       "x" + strings.Repeat("ü", 511),
		strings.Repeat("x", 1021) + "🚀":      strings.Repeat("x", 1021),
		strings.Repeat("x", 1022) + "\xf0xx": strings.Repeat("x", 1022) + "?x",
	} {
		redistest.Want(t, fmt.Sprintf("CutText(%.20q…%d)", in, len(in)), CutText(in), out)
	}
}

// A due time is sent in whole ms. It is rounded up, so that no message is early.
func TestWhenIsRoundedUp(t *testing.T) {
	base := time.UnixMilli(1_795_216_995_123)
	for got, text := range map[When]When{
		After(0): "+0", After(1): "+1", After(time.Millisecond): "+1", After(time.Millisecond + 1): "+2",
		After(1500 * time.Microsecond): "+2",
		After(time.Hour):               "+3600000", After(1<<63 - 1): "+9223372036855", After(-time.Second): "+-1000",
		After(-1): "+0",
		At(base):  "1795216995123", At(base.Add(1)): "1795216995124", At(base.Add(time.Millisecond)): "1795216995124",
		At(base.Add(-1)):              "1795216995123",
		At(time.UnixMilli(-5).Add(1)): "-4", At(base.In(time.FixedZone("x", 3600))): "1795216995123",
	} {
		redistest.Want(t, "when", got, text)
	}
	redistest.Want(t, "window", Window(90*time.Second), "90000")
	redistest.Want(t, "window", Window(0), "1")
	redistest.Want(t, "window", Window(1001*time.Microsecond), "2")
}

func TestAttemptsAsArguments(t *testing.T) {
	for _, c := range []struct {
		a      Attempts
		delays string
	}{{Attempts{}, "0"}, {Attempts{Max: 3, Delays: []time.Duration{0, time.Second, 1500 * time.Microsecond, -time.Second}},
		"0,1000,2,0"}} {
		most, delays := c.a.args()
		redistest.Want(t, "max", most, fmt.Sprint(c.a.Max))
		redistest.Want(t, "delays", delays, c.delays)
	}
}

// The names of the keys are fixed, because clients in other languages use them. Keys of partitions, and keys that only
// look like a schedule, are not the schedule of a queue.
func TestKeyNames(t *testing.T) {
	k, g := NewKeys("duestream", "emails"), NewGlobals("duestream")
	wantList(t, "keys", keysOf(k), "duestream:{emails}:due", "duestream:{emails}:payload", "duestream:{emails}:meta",
		"duestream:{emails}:stream",
		"duestream:{emails}:dead", "duestream:{emails}:wake", "duestream:{emails}:policy", "duestream:{emails}:seen",
		"duestream:{emails}:calm", "duestream:{emails}:recurring", "duestream:{emails}:planned",
		"duestream:{emails}:turns")
	redistest.Want(t, "globals", g, Globals{"duestream:queues", "duestream:defaults", "duestream:bridges", "duestream:wake",
		"duestream:tokens"})
	for key, queue := range map[string]string{
		"duestream:{emails}:due": "emails", "duestream:{a:b.c_d-1}:due": "a:b.c_d-1",
		"duestream:{emails}:dead": "", "duestream:{emails/0}:due": "", "duestream:{emails/01}:due": "",
		"duestream:{emails/x}:due": "", "duestream:{emails/256}:due": "", "other:{emails}:due": "", "duestream:{}:due": "",
		"duestream:{a}b}:due": "", "duestream:emails:due": "", "duestream:due": "", "": "",
	} {
		got, partition, ok := QueueOf("duestream", key)
		redistest.Want(t, "partition of "+key, partition, 0)
		redistest.Want(t, key+" is the schedule of a queue", ok, queue != "")
		if ok {
			redistest.Want(t, "queue of "+key, got, queue)
		}
	}
}
