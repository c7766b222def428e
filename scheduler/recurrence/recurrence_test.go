package recurrence

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// compiled returns the schedule of a spec.
func compiled(t *testing.T, s Spec) *Schedule {
	t.Helper()
	s.Name, s.Queue = "nightly", "reports"
	c, err := s.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// at parses a time.
func at(t *testing.T, text string) time.Time {
	t.Helper()
	when, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return when
}

// The occurrences where clocks are set forward or back, case by case, must be those in the table of the documents.
func TestWhereClocksAreSet(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ zone, cron, after, want string }{
		{"Europe/Berlin", "30 2 * * *", "2026-03-28T12:00:00+01:00", "2026-03-29T03:00:00+02:00 2026-03-30T02:30:00+02:00"},
		{"Europe/Berlin", "30 2 * * *", "2026-10-24T12:00:00+02:00", "2026-10-25T02:30:00+02:00 2026-10-26T02:30:00+01:00"},
		{"Europe/Berlin", "*/30 * * * *", "2026-10-25T02:00:00+02:00",
			"2026-10-25T02:30:00+02:00 2026-10-25T02:00:00+01:00 2026-10-25T02:30:00+01:00 2026-10-25T03:00:00+01:00"},
		{"America/New_York", "30 2 * * *", "2026-03-08T00:00:00-05:00", "2026-03-08T03:00:00-04:00 2026-03-09T02:30:00-04:00"},
		{"Australia/Lord_Howe", "15 2 * * *", "2026-10-04T00:00:00+10:30", "2026-10-04T02:30:00+11:00 2026-10-05T02:15:00+11:00"},
		{"America/Sao_Paulo", "0 0 * * *", "2018-11-03T12:00:00-03:00", "2018-11-04T01:00:00-02:00 2018-11-05T00:00:00-02:00"},
		{"Africa/Cairo", "0 0 * * *", "2024-04-25T12:00:00+02:00", "2024-04-26T01:00:00+03:00 2024-04-27T00:00:00+03:00"},
		{"Pacific/Apia", "0 9 * * *", "2011-12-29T08:00:00-10:00", "2011-12-29T09:00:00-10:00 2011-12-31T09:00:00+14:00"},
		{"UTC", "30 2 29 2 *", "2096-03-01T00:00:00Z", "2104-02-29T02:30:00Z"},
		{"UTC", "*/20 * * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:00:20Z 2026-01-01T00:00:40Z 2026-01-01T00:01:00Z"},
	} {
		s, when := compiled(t, Spec{Cron: c.cron, Zone: c.zone}), at(t, c.after)
		for _, want := range strings.Fields(c.want) {
			next, ok := s.Next(when)
			if !ok || next.Format(time.RFC3339) != want {
				t.Errorf("%s %q after %s: %s, want %s", c.zone, c.cron, when, next.Format(time.RFC3339), want)
			}
			when = next
		}
	}
}

// Occurrences of "every" must be multiples of the interval since 1970, plus the phase, within start and end.
func TestEveryKeepsItsPhase(t *testing.T) {
	t.Parallel()
	s := compiled(t, Spec{Every: 90 * time.Second, Phase: 7 * time.Second})
	for after, want := range map[int64]int64{0: 7000, 6999: 7000, 7000: 97_000, 96_999: 97_000,
		1_000_000_000_000: 1_000_000_087_000} {
		next, _ := s.Next(time.UnixMilli(after))
		redistest.Want(t, "next", next.UnixMilli(), want)
	}
	s = compiled(t, Spec{Every: time.Minute, Start: at(t, "2026-01-01T00:00:00Z"), End: at(t, "2026-01-01T00:02:00Z")})
	var all []string
	for when, ok := s.Next(at(t, "2025-01-01T00:00:00Z")); ok; when, ok = s.Next(when) {
		all = append(all, when.Format("15:04"))
	}
	redistest.Want(t, "all occurrences", strings.Join(all, " "), "00:00 00:01 00:02")
	last, ok := s.LastUntil(at(t, "2025-01-01T00:00:00Z"), at(t, "2026-01-01T00:01:59Z"))
	redistest.Want(t, "last occurrence before a time", last.UTC().Format(time.RFC3339), "2026-01-01T00:01:00Z")
	_, none := s.LastUntil(at(t, "2026-01-01T00:01:00Z"), at(t, "2026-01-01T00:01:59Z"))
	redistest.Want(t, "there is one, and none in the next minute", [2]bool{ok, none}, [2]bool{true, false})
}

// The jitter must be the same for each computation of one occurrence, because several bridges compute it, and must be
// spread over different occurrences.
func TestJitterIsOfTheOccurrence(t *testing.T) {
	t.Parallel()
	s := compiled(t, Spec{Every: time.Minute, Jitter: 10 * time.Second})
	seen := map[time.Duration]bool{}
	for i := range 1000 {
		when := time.UnixMilli(1e12).Add(time.Duration(i) * time.Minute)
		late := s.Due(when).Sub(when)
		if late < 0 || late > s.Jitter || late != s.Due(when).Sub(when) {
			t.Fatal(late)
		}
		seen[late/time.Second] = true
	}
	if len(seen) < 10 {
		t.Errorf("only %d different seconds of ten", len(seen))
	}
}

// An error must name the field, its value and its limit, for all faults at once.
func TestWrongSpecsAreNamed(t *testing.T) {
	t.Parallel()
	good := Spec{Name: "n", Queue: "q", Cron: "0 9 * * *"}
	for want, change := range map[string]func(*Spec){
		`cron "61 * * * *": the minute is "61": must be 0 to 59`: func(s *Spec) {
			s.Cron = "61 * * * *"
		},
		`cron "* * * *": must have 5 fields`: func(s *Spec) {
			s.Cron = "* * * *"
		},
		`cron "0 0 31 2 *": must name a date that exists`: func(s *Spec) {
			s.Cron = "0 0 31 2 *"
		},
		`cron "CRON_TZ=Europe/Berlin": must not name a time zone`: func(s *Spec) {
			s.Cron = "CRON_TZ=Europe/Berlin"
		},
		`cron "TZ=": must not name a time zone`: func(s *Spec) {
			s.Cron = "TZ="
		},
		`cron "@every 1ns": must be @yearly`: func(s *Spec) {
			s.Cron = "@every 1ns"
		},
		`cron "0 22-4 * * *": the hour is "22-4": a range must not run backwards`: func(s *Spec) {
			s.Cron = "0 22-4 * * *"
		},
		`cron "*/0 * * * *": the minute is "*/0": a step must be 1 to 59`: func(s *Spec) {
			s.Cron = "*/0 * * * *"
		},
		`cron "0 0 * foo *": the month is "foo": must be 1 to 12, or jan to dec`: func(s *Spec) {
			s.Cron = "0 0 * foo *"
		},
		`cron "0 -1 * * *": the hour is "": must be 0 to 23`: func(s *Spec) {
			s.Cron = "0 -1 * * *"
		},
		`(513 bytes): must be at most 512 bytes`: func(s *Spec) {
			s.Cron = strings.Repeat("*", 513)
		},
		`every "1m0s": must not be given beside cron`: func(s *Spec) {
			s.Every = time.Minute
		},
		`cron "": must be given, or every`: func(s *Spec) {
			s.Cron = ""
		},
		`every "999ms": must be whole milliseconds, between 1s and 3650d`: func(s *Spec) {
			s.Cron, s.Every = "", 999*time.Millisecond
		},
		`phase "1m0s": must be whole milliseconds, from 0 to less than every`: func(s *Spec) {
			s.Cron, s.Every, s.Phase = "", time.Minute, time.Minute
		},
		`zone "UTC": must not be given beside every`: func(s *Spec) {
			s.Cron, s.Every, s.Zone = "", time.Minute, "UTC"
		},
		`zone "Local": must be a time zone like Europe/Paris or UTC`: func(s *Spec) {
			s.Zone = "Local"
		},
		`zone "../etc/passwd": must be a time zone`: func(s *Spec) {
			s.Zone = "../etc/passwd"
		},
		`name "": must not be empty`: func(s *Spec) {
			s.Name = ""
		},
		`(201 bytes): must be at most 200 bytes`: func(s *Spec) {
			s.Name = strings.Repeat("n", 201)
		},
		`queue "a b": must be 1 to 128 characters`: func(s *Spec) {
			s.Queue = "a b"
		},
		`count "-1": must be between 0 (no bound) and 1000000000`: func(s *Spec) {
			s.Count = -1
		},
		`jitter "25h0m0s": must be whole milliseconds, between 0 and 24h0m0s`: func(s *Spec) {
			s.Jitter = 25 * time.Hour
		},
		`missed "later": must be skip, once or all`: func(s *Spec) {
			s.Missed = "later"
		},
		`overlap "wait": must be allow or skip`: func(s *Spec) {
			s.Overlap = "wait"
		},
		`payload of 1048577 bytes: must be at most 1048576 bytes`: func(s *Spec) {
			s.Payload = make([]byte, MaxPayloadBytes+1)
		},
		`end "2001-09-10T00:00:00Z": must be after start`: func(s *Spec) {
			s.Start, s.End = at(t, "2001-09-11T00:00:00Z"), at(t, "2001-09-10T00:00:00Z")
		},
		"zone \"Mars\": must be a time zone like Europe/Paris or UTC\ncount \"-2\": must be b": func(s *Spec) {
			s.Zone, s.Count = "Mars", -2
		},
	} {
		s := good
		change(&s)
		_, err := s.Compile()
		if !errors.Is(err, lua.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A spec must come back unchanged from its JSON, and JSON that is no spec must be refused with the name of the field.
func TestSpecSurvivesItsJSON(t *testing.T) {
	t.Parallel()
	for _, s := range []Spec{
		{Name: "n", Queue: "q", Cron: "@daily", Zone: "Europe/Paris", Payload: []byte(`<a>"é`),
			Headers: map[string]string{"a": "b"}},
		{Name: "n", Queue: "q", Every: 90 * time.Second, Phase: time.Second, Payload: []byte{0xff, 0}, Start: time.UnixMilli(1e12),
			End: time.UnixMilli(2e12), Count: 3, Jitter: time.Second, Missed: MissedAll, Overlap: OverlapSkip, Paused: true,
			Owner: "o"},
	} {
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back Spec
		if err := json.Unmarshal(text, &back); err != nil || !back.Equal(s) {
			t.Errorf("%s: %+v, %v", text, back, err)
		}
	}
	var s Spec
	for text, want := range map[string]string{
		`{"every":5}`: "unknown field", `{"every_ms":-1}`: "every_ms", `{"start_ms":5}`: "start_ms",
		`{"payload":"a","payload_base64":"YQ=="}`: "payload_base64", `[]`: "cannot unmarshal", `{"count":"x"}`: "count",
	} {
		if err := json.Unmarshal([]byte(text), &s); !errors.Is(err, lua.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := json.Unmarshal([]byte(`{"payload":{"a": 1}}`), &s); err != nil || string(s.Payload) != `{"a":1}` {
		t.Errorf("%s %v", s.Payload, err)
	}
}

// Any expression must be refused as invalid, or give ever later occurrences in a short time.
func FuzzCron(f *testing.F) {
	for _, text := range expressions {
		f.Add(text, "Europe/Berlin", int64(1_774_746_000_000))
	}
	f.Add("* * 0-22 * * *", "Pacific/Apia", int64(1_325_200_000_000))
	f.Add("0-59/61 * * * *", "TZ=", int64(0))
	f.Fuzz(func(t *testing.T, text, zone string, after int64) {
		s, err := Spec{Name: "n", Queue: "q", Cron: text, Zone: zone}.Compile()
		if err != nil {
			if !errors.Is(err, lua.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		when, began := time.UnixMilli(max(0, min(after, 1e13))), time.Now()
		for range 3 {
			next, ok := s.Next(when)
			if !ok {
				break
			}
			if !next.After(when) {
				t.Fatalf("%q in %s: %s after %s", text, zone, next, when)
			}
			when = next
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Fatalf("%q in %s took %s", text, zone, took)
		}
	})
}

// BenchmarkNext measures the computation of one occurrence of a cron expression in a zone.
func BenchmarkNext(b *testing.B) {
	s, _ := Spec{Name: "n", Queue: "q", Cron: "30 2 * * 1-5", Zone: "Europe/Berlin"}.Compile()
	when := time.UnixMilli(1_774_746_000_000)
	for b.Loop() {
		when, _ = s.Next(when)
	}
}

// Bytes that JSON would replace silently must be refused with the name of the field. As base64 any bytes are accepted.
func TestBytesThatJSONWouldChangeAreRefused(t *testing.T) {
	t.Parallel()
	for text, field := range map[string]string{
		"{\"every_ms\":1000,\"payload\":\"a\xffb\"}":               "payload",
		`{"every_ms":1000,"payload":"a\ud800b"}`:                   "payload",
		"{\"every_ms\":1000,\"headers\":{\"a\":\"\xff\"}}":         "headers",
		`{"every_ms":1000,"headers":{"\udc00":"b"}}`:               "headers",
		"{\"every_ms\":1000,\"owner\":\"\xff\"}":                   "owner",
		"{\"every_ms\":1000,\"payload\":\"\xef\xbf\xbd \\uFfFd\"}": "",
		`{"every_ms":1000,"payload":"\ud83d\ude00 \\ufffd"}`:       "",
		"{\"every_ms\":1000,\"payload\":{\"a\":\"\xff\"}}":         "",
		`{"every_ms":1000,"payload_base64":"/w=="}`:                "",
	} {
		var s Spec
		err := json.Unmarshal([]byte(text), &s)
		var bad *lua.InvalidError
		if (err == nil) != (field == "") || field != "" && (!errors.As(err, &bad) || bad.Field != field) {
			t.Errorf("%q: %v, want %q refused", text, err, field)
		}
		if again, err := json.Marshal(s); field == "" && err == nil {
			var same Spec
			if err := json.Unmarshal(again, &same); err != nil || !same.Equal(s) {
				t.Errorf("%q comes back as %q: %v", text, again, err)
			}
		}
	}
}
