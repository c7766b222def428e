package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// FuzzPolicy: whatever stands in the hashes, the policy in force is within its limits, each setting is the first one that counts, and what does
// not count is named.
func FuzzPolicy(f *testing.F) {
	f.Add("g", "visibility_ms", "30000", "group:g:visibility_ms", "100", "visibility_ms", "5000")
	f.Add("g/ü", "group:g%2F%C3%BC:max_attempts", "3", "max_attempts", "0", "max_attempts", "7")
	f.Add("g", "retry_min_ms", "5000", "retry_max_ms", "1", "held", "1")
	f.Add("g", "held", "1", "group:g:held", "0", "retry_max_ms", "9223372036854775808")
	f.Add("", "max_attempts", "1e3", "group::max_attempts", "+5", "visibility_ms", " 100")
	f.Fuzz(func(t *testing.T, group, n1, v1, n2, v2, n3, v3 string) {
		queue, defaults := map[string]string{n1: v1, n2: v2}, map[string]string{n3: v3}
		p, warning := resolve(group, maps.Clone(queue), maps.Clone(defaults))
		for _, s := range settings {
			if err := s.check(s.get(&p)); err != nil {
				t.Errorf("%v in force", err)
			}
			own := "group:" + strings.ReplaceAll(url.QueryEscape(group), "+", "%20") + ":" + s.name
			levels := []string{queue[own], queue[s.name], defaults[s.name]}
			if s.name == SettingHeld {
				levels = []string{queue[s.name]}
			}
			built := DefaultPolicy()
			wanted := s.get(&built)
			for _, value := range levels {
				n, err := strconv.ParseInt(value, 10, 64)
				if err == nil && n >= s.low && n <= s.high {
					wanted = n
					break
				}
				if value != "" && (warning == nil || !strings.Contains(warning.Error(), s.name)) {
					t.Errorf("%s=%q is passed over without a word: %v", s.name, value, warning)
				}
			}
			if s.name == SettingRetryMax {
				wanted = max(wanted, p.RetryMin.Milliseconds())
			}
			want(t, s.name, s.get(&p), wanted)
		}
		text, err := json.Marshal(p)
		var again Policy
		if err != nil || json.Unmarshal(text, &again) != nil || again != p {
			t.Errorf("%+v as JSON %s: %+v, %v", p, text, again, err)
		}
	})
}

var plainField = regexp.MustCompile(`^group:[A-Za-z0-9._~%-]*:max_attempts$`)

// FuzzGroupSetting: the percent-encoding of a group's name is plain ASCII, holds no colon, and no two groups share one.
func FuzzGroupSetting(f *testing.F) {
	f.Add("g", "g ")
	f.Add("a b", "a+b")
	f.Add("a%20b", "a b")
	f.Add("a:b", "a%3Ab")
	f.Add("\xff", "\x00\n")
	f.Fuzz(func(t *testing.T, a, b string) {
		encoded := groupSetting(a, SettingMaxAttempts)
		if !plainField.MatchString(encoded) {
			t.Errorf("%q is encoded as %q", a, encoded)
		}
		if name, err := url.PathUnescape(strings.Split(encoded, ":")[1]); err != nil || name != a {
			t.Errorf("%q comes back as %q, %v", a, name, err)
		}
		if a != b && encoded == groupSetting(b, SettingMaxAttempts) {
			t.Errorf("%q and %q share %q", a, b, encoded)
		}
	})
}

// FuzzLetterFilter: any pattern, also one that is not UTF-8, selects IDs as the plain recursion does, and panics on none.
func FuzzLetterFilter(f *testing.F) {
	for _, s := range [][2]string{
		{"order-*", "order-1"}, {"*-1", "order-1"}, {"?", "ü"}, {"a?c*", "abc"}, {"*", ""}, {"", "x"}, {"**?", "a"}, {"[a]", "a"},
		{`\*`, "*"}, {"a.c", "abc"}, {"*a*b", "aab"},
		{"\xff", "\xff"}, {"?\xfe*", "\xff\xfe"}, {"*\n*", "a\nb"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, pattern, id string) {
		if len(pattern) > 200 || len(id) > 200 {
			return // the reference is slow
		}
		got := Filter{ID: pattern}.matcher()(Letter{ID: id})
		if wanted := pattern == "" || matchesSlowly([]rune(mapBytes(pattern)), []rune(mapBytes(id)), map[[2]int]bool{}); got != wanted {
			t.Errorf("%q selects %q: %t, want %t", pattern, id, got, wanted)
		}
	})
}

// mapBytes turns what is not UTF-8 into characters of their own, so that the reference can work on runes.
func mapBytes(s string) string {
	var out strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 {
			r = rune(0xf0000) + rune(s[0])
		}
		out.WriteRune(r)
		s = s[n:]
	}
	return out.String()
}

func matchesSlowly(pattern, id []rune, failed map[[2]int]bool) bool {
	at := [2]int{len(pattern), len(id)}
	if failed[at] {
		return false
	}
	ok := false
	switch {
	case len(pattern) == 0:
		ok = len(id) == 0
	case pattern[0] == '*':
		ok = matchesSlowly(pattern[1:], id, failed) || len(id) > 0 && matchesSlowly(pattern, id[1:], failed)
	default:
		ok = len(id) > 0 && (pattern[0] == '?' || pattern[0] == id[0]) && matchesSlowly(pattern[1:], id[1:], failed)
	}
	failed[at] = !ok
	return ok
}

// FuzzPayloadJSON: any payload comes back from JSON bit for bit, nil stays nil; and any JSON is read or refused.
func FuzzPayloadJSON(f *testing.F) {
	for _, seed := range []string{
		"", "text", "\xff\x00", "\ufffd", "\u2028<&>", `{"base64":"eA=="}`,
		`{"base64":null}`, `null`, `"x"`, `[1]`, `{"base64":"*"}`, `{"base64":"","x":1}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, p := range []Payload{data, append(Payload{}, data...), nil} {
			text, err := json.Marshal(p)
			if err != nil || !utf8.Valid(text) {
				t.Fatalf("%q becomes %q, %v", p, text, err)
			}
			again := Payload("before")
			if err := json.Unmarshal(text, &again); err != nil || !bytes.Equal(p, again) || (p == nil) != (again == nil) {
				t.Errorf("%q becomes %s becomes %q, %v", p, text, again, err)
			}
		}
		var p Payload
		if json.Unmarshal(data, &p) == nil && !json.Valid(data) {
			t.Errorf("%q is read as %q", data, p)
		}
	})
}

// FuzzForeignNames: groups and consumers that others made, whatever their names, are listed by these names, and what they abandoned comes back;
// an ID that people may type is refused at the door or understood by the server.
func FuzzForeignNames(f *testing.F) {
	f.Add("g", "c", "1-1")
	f.Add("", "", "")
	f.Add("a:due", "x}y", "1795216995123-0")
	f.Add("\n\x00", "\xff", "007-01")
	f.Add("a"+lua.Separator+"b", "%41 +", "18446744073709551615-18446744073709551615")
	f.Add("\xff", "duestream-reclaim", "-")
	f.Add("(", "[", "+5")
	s := redistest.Shared(f)
	shared := &rig{s: s, prefix: s.Prefix(f), queue: redistest.Queue(f)}
	shared.c = s.Client(f)
	shared.k = lua.NewKeys(shared.prefix, shared.queue)
	f.Fuzz(func(t *testing.T, group, consumer, typed string) {
		r := *shared
		r.t = t
		ctx := context.WithoutCancel(t.Context())
		t.Cleanup(func() { r.do("DEL", r.k.Stream, r.k.Due, r.k.Payload, r.k.Meta, r.k.Dead, r.k.Wake) })
		r.do("XADD", r.k.Stream, "*", "id", "m", "payload", "p")
		r.do("XGROUP", "CREATE", r.k.Stream, group, "0")
		r.do("XREADGROUP", "GROUP", group, consumer, "STREAMS", r.k.Stream, ">")

		stats, err := Stats(ctx, r.c, r.prefix, r.queue)
		if err != nil || len(stats.Groups) != 1 || stats.Groups[0].Name != group || stats.Groups[0].Pending != 1 {
			t.Fatalf("stats of %q: %+v, %v", group, stats.Groups, err)
		}
		if text, err := json.Marshal(stats); err != nil || !json.Valid(text) {
			t.Errorf("stats of %q as JSON: %s, %v", group, text, err)
		}
		held, err := Pending(ctx, r.c, r.prefix, r.queue, group, PendingFilter{}, 10)
		if err != nil || len(held) != 1 || held[0].Consumer != consumer || held[0].ID != "m" {
			t.Fatalf("pending of %q/%q: %+v, %v", group, consumer, held, err)
		}
		if lua.CheckGroup(group) != nil { // no retry can be for it: it keeps what it abandons
			_, err := lua.Reclaim(ctx, r.c, r.k, lua.ReclaimArgs{Group: group, Attempts: DefaultPolicy().Attempts(), Limit: 10, MaxBytes: 1 << 20})
			if err == nil || r.pending(group) != 1 || r.number("ZCARD", r.k.Due)+r.number("XLEN", r.k.Dead) != 0 {
				t.Fatalf("reclaim of %q: %v", group, err)
			}
			return
		}
		got, err := lua.Reclaim(ctx, r.c, r.k, lua.ReclaimArgs{Group: group, Attempts: DefaultPolicy().Attempts(), Limit: 10, MaxBytes: 1 << 20})
		if err != nil || got.Retried != 1 {
			t.Fatalf("reclaim of %q/%q: %+v, %v", group, consumer, got, err)
		}
		member := r.texts("ZRANGE", r.k.Due, "0", "-1")[0]
		r.do("ZADD", r.k.Due, "XX", "1", member)
		d, err := lua.Drain(ctx, r.c, r.k, 10, 1<<20)
		if err != nil || d.Moved != 1 {
			t.Fatalf("drain: %+v, %v", d, err)
		}
		found, err := r.c.Do(ctx, r.c.B().Xrange().Key(r.k.Stream).Start("-").End("+").Build()).AsXRange()
		if err != nil || len(found) != 1 || found[0].FieldValues[lua.FieldFor] != group || found[0].FieldValues["payload"] != "p" {
			t.Errorf("what %q abandoned came back as %q, %v", group, found, err)
		}

		if id, err := parseEntryID(typed); err == nil {
			if err := r.c.Do(ctx, r.c.B().Xrange().Key(r.k.Dead).Start(typed).End(typed).Build()).Error(); err != nil {
				t.Errorf("%q is an entry ID, %s, and refused by the server: %v", typed, id, err)
			}
		} else if !strings.Contains(err.Error(), "entry ID") || !strings.Contains(err.Error(), "must be") {
			t.Errorf("%q is refused with %q", typed, err)
		}
	})
}

func (r *rig) texts(words ...string) []string {
	r.t.Helper()
	list, err := r.c.Do(context.WithoutCancel(r.t.Context()), r.c.B().Arbitrary(words...).Build()).AsStrSlice()
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

// A pattern that is not UTF-8 made the filter panic, because it was compiled to a regular expression: `dead list --id` with a stray byte ended
// in a stack trace.
func TestLetterFilterTakesAnyPattern(t *testing.T) {
	t.Parallel()
	matches := Filter{ID: "\xff*"}.matcher()
	want(t, "selected", matches(Letter{ID: "\xff\xfe"}), true)
	want(t, "selected", matches(Letter{ID: "\xfe\xff"}), false)
	want(t, "ends in time", Filter{ID: strings.Repeat("*a", 60)}.matcher()(Letter{ID: strings.Repeat("a", 5000) + "b"}), false)
}
