package producer

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/lua"
)

// An invalid message must be refused with the name of the wrong field, before Redis is called.
func TestMessageIsCheckedBeforeRedisIsTouched(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		m     Message
		field string // "" = accepted
	}{
		"empty": {Message{}, ""},
		"all fields": {Message{ID: "a", Payload: []byte{0, 255}, Headers: map[string]string{"k": "v"}, At: at,
			MaxAttempts: 3, Expires: at.Add(1), Dedup: time.Hour}, ""},
		"delay of ten years":            {Message{Delay: lua.MaxDelay}, ""},
		"delay and expiry":              {Message{Delay: time.Hour, Expires: at}, ""},
		"negative delay":                {Message{Delay: -1}, "delay"},
		"delay too long":                {Message{Delay: lua.MaxDelay + 1}, "delay"},
		"delay and at":                  {Message{Delay: 1, At: at}, "delay"},
		"at in seconds":                 {Message{At: time.UnixMilli(at.Unix())}, "at"},
		"expires at the due time":       {Message{At: at, Expires: at}, "expires"},
		"expires in an hour":            {Message{ExpiresIn: time.Hour}, ""},
		"expires in, no later than due": {Message{Delay: time.Hour, ExpiresIn: time.Hour}, "expires in"},
		"expires in, spread":            {Message{Delay: 1, Spread: time.Hour, ExpiresIn: time.Hour}, "expires in"},
		"expires in the past":           {Message{ExpiresIn: -1}, "expires in"},
		"expires in and at":             {Message{ExpiresIn: time.Hour, Expires: at}, "expires in"},
		"expires in seconds":            {Message{Expires: time.UnixMilli(at.Unix())}, "expires"},
		"ID too long":                   {Message{ID: strings.Repeat("x", lua.MaxIDBytes+1)}, "id"},
		"ID with the separator":         {Message{ID: "a" + lua.Separator}, "id"},
		"payload too large":             {Message{Payload: make([]byte, lua.MaxPayloadBytes+1)}, "payload"},
		"header not UTF-8":              {Message{Headers: map[string]string{"k": "\xff"}}, "header k"},
		"negative attempts":             {Message{MaxAttempts: -1}, "max_attempts"},
		"dedup without an ID":           {Message{Dedup: time.Second}, "dedup"},
		"negative dedup":                {Message{ID: "a", Dedup: -1}, "dedup"},
		"dedup longer than allowed":     {Message{ID: "a", Dedup: lua.MaxDelay + 1}, "dedup"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.m.item(newPayloadCopies(nil))
			var invalid *lua.InvalidError
			switch {
			case c.field == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.field != "" && !errors.As(err, &invalid):
				t.Errorf("got %v, want an InvalidError of %s", err, c.field)
			case c.field != "" && invalid.Field != c.field:
				t.Errorf("refused %s (%v), want %s", invalid.Field, err, c.field)
			}
		})
	}
}

// The script gets the due time in whole milliseconds, rounded up, and the kind of dedup that the message needs.
func TestMessageBecomesAnItem(t *testing.T) {
	t.Parallel()
	payload := []byte("abc")
	for name, c := range map[string]struct {
		m    Message
		when lua.When
		how  lua.Dedup
	}{
		"own ID":     {Message{ID: "a", Payload: payload, Delay: 1500 * time.Microsecond}, "+2", lua.Refuse},
		"window":     {Message{ID: "a", Payload: payload, Dedup: time.Second}, "+0", "1000"},
		"made ID":    {Message{Payload: payload}, "+0", lua.Fresh},
		"point":      {Message{Payload: payload, At: time.UnixMilli(1_900_000_000_000).Add(1)}, "1900000000001", lua.Fresh},
		"made later": {Message{Payload: payload, Delay: time.Hour}, "+3600000", lua.Fresh},
	} {
		t.Run(name, func(t *testing.T) {
			item, err := c.m.item(newPayloadCopies(nil))
			if err != nil || item.When != c.when || item.Dedup != c.how || string(item.Payload) != "abc" {
				t.Errorf("got %+v, %v; want when %q, dedup %q", item, err, c.when, c.how)
			}
			if &item.Payload[0] == &payload[0] {
				t.Error("the payload was not copied: a caller whose context ends may reuse its buffer")
			}
		})
	}
}

// Generated IDs must only grow, also if the clock is set back.
func TestIDsNeverFall(t *testing.T) {
	t.Parallel()
	s, last := newIDs(), ""
	for i := range 10_000 {
		if i == 5_000 {
			s.last += 60_000 // as if the clock had been set back by a minute
		}
		id := s.next()
		if id <= last {
			t.Fatalf("%s after %s", id, last)
		}
		last = id
	}
}
