package message

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/producer"
)

// A message that was written as a line is read again as it was, in every field.
func TestALineHoldsTheWholeMessage(t *testing.T) {
	t.Parallel()
	whole := producer.Message{
		ID: "a", Headers: map[string]string{"x": "<1>", "y": ""}, Spread: time.Second, MaxAttempts: 1,
		RetryFor:    2 * time.Second,
		RetryDelays: lua.NewDelays(time.Second, time.Minute), MaxSnoozes: 2, MaxCrashes: 3,
		HandlerTimeout: 4 * time.Second, KeepResult: 5 * time.Second,
		Key: "k", Payload: []byte("a\x00\u2028\"€"),
	}
	at, expires := time.UnixMilli(1795216995000), time.UnixMilli(1795216996000)
	messages := []producer.Message{
		{}, whole, {Payload: []byte{0xff, 0}}, {Payload: []byte("null")}, {Payload: []byte("a\u2028\"€\n<")},
		{Delay: time.Hour}, {At: at, Expires: expires}, {ID: "b", Dedup: time.Minute},
	}
	for _, mode := range slices.Sorted(maps.Values(replaceModes)) {
		messages = append(messages, producer.Message{ID: "c", Replace: mode})
	}
	seen := map[string]bool{}
	for _, m := range messages {
		text, err := json.Marshal(LineOf(m))
		if err != nil {
			t.Fatal(err)
		}
		line, err := Parse(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		back, err := line.Message(producer.Message{})
		if err != nil || !reflect.DeepEqual(back, m) {
			t.Errorf("%s: %+v, %v; want %+v", text, back, err, m)
		}
		for field := range reflect.TypeFor[producer.Message]().Fields() {
			if field.IsExported() && !reflect.ValueOf(m).FieldByIndex(field.Index).IsZero() {
				seen[field.Name] = true
			}
		}
	}
	for field := range reflect.TypeFor[producer.Message]().Fields() {
		if field.IsExported() && !seen[field.Name] && field.Name != "ExpiresIn" {
			t.Errorf("no message has %s", field.Name)
		}
	}
}

// No part of a millisecond is lost, so that no message is early.
func TestALineRoundsUp(t *testing.T) {
	t.Parallel()
	l := LineOf(producer.Message{Delay: time.Millisecond + 1, Expires: time.UnixMilli(1795216995000).Add(1)})
	if *l.In != 2 || *l.Expires != 1795216995001 {
		t.Errorf("%d ms, expiry %d", *l.In, *l.Expires)
	}
}
