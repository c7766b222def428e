package stream

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// The value that the handler set last is stored if the handler returns nil, and if the message asks for it. A failed
// attempt stores nothing. A message that asks gets an empty result from a handler that sets none. The progress ends
// with the message.
func TestResultIsStoredIfTheMessageAsksForIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	w, stop := r.start(WorkerConfig{
		Handler: func(ctx context.Context, m *Message) error {
			if err := m.SaveProgress(ctx, []byte("page 7")); err != nil {
				t.Error(err)
			}
			redistest.Want(t, "age of "+m.ID, m.ResultAge() > 0, m.ID != "asks not")
			if m.ID == "sets none" {
				return nil
			}
			for _, value := range []string{"draft", "of attempt " + string(rune('0'+m.Attempt))} {
				if err := m.SetResult([]byte(value)); err != nil {
					t.Error(err)
				}
			}
			if m.ID == "fails once" && m.Attempt == 1 {
				return RetryAfter(0, errors.New("no"))
			}
			return nil
		},
	})
	asks := lua.EncodeMeta(nil, 0, time.Time{}, lua.Retries{KeepResult: time.Hour}.Fields()...)
	for _, id := range []string{"asks", "asks not", "sets none", "fails once"} {
		one := lua.Item{ID: id, When: lua.After(0), Meta: asks}
		if id == "asks not" {
			one.Meta = ""
		}
		r.Enqueue(one)
	}
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		r.DrainAll()
		return w.Stats().Acknowledged == 4, "not all are done"
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{
		"asks": "of attempt 1", "asks not": "none", "sets none": "", "fails once": "of attempt 2",
	} {
		got := "none"
		if one, ok, err := lua.ReadResult(t.Context(), r.Client, []lua.Keys{r.Keys}, "g", id); err != nil {
			t.Error(err)
		} else if ok {
			got = string(one.Value)
		}
		redistest.Want(t, "result of "+id, got, want)
	}
	redistest.Want(t, "entries", r.Length(r.Keys.Stream), int64(0))
	redistest.Want(t, "progress that is left", r.Exists(r.Keys.Progress), int64(0))
}

// A value that is too large is refused, and the handler may go on.
func TestResultThatIsTooLarge(t *testing.T) {
	t.Parallel()
	m := &Message{ID: "m", Extra: map[string]string{lua.FieldResult: "1000000000000"}}
	var invalid *lua.InvalidError
	err := m.SetResult([]byte(strings.Repeat("x", MaxResultBytes+1)))
	if !errors.As(err, &invalid) || invalid.Field != "result" {
		t.Errorf("a large result: %v", err)
	}
	redistest.Want(t, "age", m.ResultAge(), lua.MaxResultAge)
	if err := m.SetResult([]byte(strings.Repeat("x", MaxResultBytes))); err != nil {
		t.Error(err)
	}
	m.Extra[lua.FieldResult] = "soon"
	redistest.Want(t, "age of a text", m.ResultAge(), time.Duration(0))
}

// Nearly no message asks for a result. To find that out must not cost an allocation for each acknowledgement.
func TestMessagesThatAskForNoResultCostNothing(t *testing.T) {
	d := &delivery{msg: Message{Extra: map[string]string{lua.FieldKey: "k"}}}
	redistest.Want(t, "allocations", testing.AllocsPerRun(100, func() { d.asksForResult() }), 0)
	redistest.Want(t, "asks", d.asksForResult(), false)
}
