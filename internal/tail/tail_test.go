package tail

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// clientOf is a client that says which mode it has.
type clientOf struct {
	rueidis.Client
	mode rueidis.ClientMode
}

func (c clientOf) Mode() rueidis.ClientMode { return c.mode }

// On one server, one read is for up to 1,000 streams. The more reads there are, the longer each blocks, so that the
// server gets the same number of requests per second. On a cluster each stream has a read of its own.
func TestReadsAreFewWhereTheyCanBe(t *testing.T) {
	t.Parallel()
	keys := map[string]string{}
	for i := range 2010 {
		keys[fmt.Sprint("key-", i)] = ""
	}
	for mode, want := range map[rueidis.ClientMode]string{
		rueidis.ClientModeStandalone: "3 of 1000 for 3s", rueidis.ClientModeCluster: "2010 of 1 for 1s",
	} {
		r := New(Config{Client: clientOf{mode: mode}, Block: time.Second})
		r.Watch(keys)
		reads := r.reads()
		if got := fmt.Sprintf("%d of %d for %s", len(reads), len(reads[0].keys), reads[0].block); got != want {
			t.Errorf("%v: %s, want %s", mode, got, want)
		}
	}
}

// Earlier compares the two parts of stream IDs as numbers, not as text.
func TestLowerComparesStreamIDsAsNumbers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"0-0", "1-1", true}, {"9-0", "10-0", true}, {"5-9", "5-10", true}, {"5-1", "5-1", false}, {"5-2", "5-1", false},
		{"0-0", "", false}, {"18446744073709551614-1", "18446744073709551615-0", true},
	} {
		if got := Earlier(c.a, c.b); got != c.want {
			t.Errorf("%q earlier than %q: %v", c.a, c.b, got)
		}
	}
}

// A read that has failed is forgotten when its streams are no longer read, and the log then says that the failure is
// over. Regression: the log had "is failing" for such a read, and never "works again".
func TestReadThatEndsSaysSo(t *testing.T) {
	t.Parallel()
	var log queuetest.LogBook
	r := New(Config{Log: log.Logger(), Activity: "wait"})
	r.stateOf("a").Report(lua.ErrWrongType)
	r.stateOf("b").Report(nil)
	r.forget([]read{{keys: []string{"b", "c"}}})
	if got := strings.Join(log.Turns(), " "); got != "failing again" || len(r.states) != 1 {
		t.Errorf("%q, %d states", got, len(r.states))
	}
}

// Advance tells the reader that its caller has got entries by another way. An older ID must not bring the reader back
// to entries that it has passed.
func TestAdvanceNeverGoesBack(t *testing.T) {
	t.Parallel()
	r := New(Config{})
	for _, id := range []string{"5-1", "3-0", "5-2"} {
		r.Advance("k", id)
	}
	if got := r.Seen()["k"]; got != "5-2" {
		t.Errorf("%q", got)
	}
}

// interrupted is a client whose first read changes the streams of its reader before it returns, with the reader's
// context cancelled.
type interrupted struct {
	rueidis.Client
	first  chan struct{} // has room for one
	change func()
}

func (c interrupted) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	result := c.Client.Do(ctx, command)
	select {
	case c.first <- struct{}{}:
		c.change()
		<-ctx.Done()
	default:
	}
	return result
}

// Regression: an entry that came while the streams to read changed was seen, but reported to nobody. Whoever waited for
// it waited until the next entry, or until a check ten seconds later.
func TestAnEntryThatComesWhenTheStreamsChangeIsTold(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	key, other := s.Prefix(t)+":a", s.Prefix(t)+":b"
	client := s.Client(t)
	told := make(chan string, 10)
	var log queuetest.LogBook
	var r *Reader
	change := func() { r.Watch(map[string]string{key: "", other: ""}) }
	r = New(Config{Client: interrupted{client, make(chan struct{}, 1), change}, Block: time.Second, Count: 10,
		Log: log.Logger(), Activity: "wait", Added: func(key, last string) { told <- key + " " + last },
		Broken: func(error) {}})
	id, err := client.Do(t.Context(), client.B().Xadd().Key(key).Id("*").FieldValue().FieldValue("f", "v").Build()).ToString()
	if err != nil {
		t.Fatal(err)
	}
	r.Watch(map[string]string{key: ""})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { r.Run(ctx); close(ended) }()
	defer func() { stop(); <-ended }()
	select {
	case got := <-told:
		redistest.Want(t, "reported key and ID", got, key+" "+id)
	case <-time.After(20 * time.Second):
		t.Fatal("the entry was not reported")
	}
}
