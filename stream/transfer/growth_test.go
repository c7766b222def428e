package transfer

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A queue may grow while an import into it runs. Regression: the import went on with the former count. A message with
// an ordering key went into another partition than new messages of its key, and an ID of a new partition was taken a
// second time.
func TestAnImportFollowsAGrowthThatHappensMeanwhile(t *testing.T) {
	t.Parallel()
	r := queuetest.New(t, redistest.Shared(t))
	due := time.Now().Add(time.Hour)
	record := func(id, key string) Record {
		one := Record{Kind: RecordScheduled, ID: id, Due: due.UnixMilli()}
		if key != "" {
			one.Extra = map[string]string{lua.FieldKey: key}
		}
		return one
	}
	im, err := NewImport(t.Context(), r.Client, r.Prefix, r.Queue, "elsewhere", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "results before the growth", fmt.Sprint(im.Write(t.Context(), []Record{record("first", "")})),
		"[<nil>]")
	counts := lua.Counts{1, 8}
	queuetest.PublishCount(t, r.Client, r.Prefix, r.Queue, 8)
	r.Part(3).Enqueue(lua.Item{ID: "there", When: lua.At(due)})
	key := queuetest.IDOf(counts, 5)
	results := im.Write(t.Context(), []Record{record("keyed", key), record("there", "")})
	if results[0] != nil || !errors.Is(results[1], ErrKnown) {
		t.Errorf("results after the growth: %v", results)
	}
	redistest.Want(t, "in the partition of the key", r.Number("ZCARD", r.Part(5).Keys.Due), int64(1))
	redistest.Want(t, "in partition 0", r.Number("ZCARD", r.Keys.Due), int64(1))
}

// After a growth of the queue, an import must still know the IDs that it remembered before.
func TestAnImportKnowsWhatItRememberedBeforeAGrowth(t *testing.T) {
	t.Parallel()
	r := queuetest.New(t, redistest.Shared(t))
	id := queuetest.IDOf(lua.Counts{1, 8}, 5)
	for _, count := range []int{1, 8} {
		queuetest.PublishCount(t, r.Client, r.Prefix, r.Queue, count)
		im, err := NewImport(t.Context(), r.Client, r.Prefix, r.Queue, "elsewhere", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if count == 1 {
			if err := im.Remember(t.Context(), []string{"else", id}); err != nil {
				t.Fatal(err)
			}
		}
		known, err := im.Known(t.Context(), []string{"nobody", id, "else"})
		redistest.Want(t, fmt.Sprint("known, count ", count), fmt.Sprint(known, err), "[false true true] <nil>")
	}
}
