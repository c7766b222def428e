package lua

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// enqueueOne makes the first try of EnqueueOne, which must take the message.
func (b *testQueue) enqueueOne(token Token, item Item) Receipt {
	b.Helper()
	return b.tryOne(token, false, item)
}

// tryOne makes a try of EnqueueOne, which must take the message.
func (b *testQueue) tryOne(token Token, again bool, item Item) Receipt {
	b.Helper()
	receipt, taken, err := EnqueueOne(b.ctx, b.c, b.k, token, again, item)
	if err != nil || !taken {
		b.Fatalf("taken: %v, %v", taken, err)
	}
	return receipt
}

// EnqueueOne stores, answers and tells the bridge the same as Enqueue.
func TestEnqueueOneStoresWhatEnqueueStores(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for _, item := range freshItems(3) {
			one, other := b.queue("one"), b.queue("plain")
			got := one.enqueueOne(Token{Name: "t", Window: time.Minute}, item)
			want, err := Enqueue(b.ctx, b.c, other.k, Token{Name: "t", Window: time.Minute}, []Item{item}, Durability{})
			if err != nil {
				b.Fatal(err)
			}
			late, absolute := want[0].Due.Sub(got.Due), item.When[0] != '+'
			if got.Verdict != Scheduled || late < 0 || late > 10*time.Second || absolute && late != 0 {
				b.Fatalf("%v where %v belongs", got, want[0])
			}
			redistest.Want(b, "due time", int64(one.dueOf(item.ID)), got.Due.UnixMilli())
			redistest.Want(b, "payloads", fmt.Sprint(one.hash(one.k.Payload)), fmt.Sprint(other.hash(other.k.Payload)))
			redistest.Want(b, "metas", fmt.Sprint(one.hash(one.k.Meta)), fmt.Sprint(other.hash(other.k.Meta)))
			redistest.Want(b, "wake tokens", one.count("XLEN", one.k.Wake), 1)
			one.makeDueAll()
			redistest.Want(b, "moved", one.drain(1).Moved, 1)
			one.do(append([]string{"DEL"}, append(keysOf(one.k), keysOf(other.k)...)...)...)
		}
	})
}

// A repeat finds its message in the schedule, even after another caller has moved it, and changes nothing. It lets the
// server remember the call, and so does the first try if the message is due within the token's window.
func TestARepeatOfEnqueueOneChangesNothing(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		token := Token{Name: "t", Window: time.Minute}
		for name, when := range map[string]When{
			"relative": After(time.Hour), "absolute": At(time.UnixMilli(4_000_000_000_000)),
			"within the window": After(time.Second),
		} {
			item := Item{ID: name, When: when, Payload: []byte("p"), Meta: `{"h:a":"b"}`}
			first := b.enqueueOne(token, item)
			redistest.Want(b, name+": first try", first.Verdict, Scheduled)
			remembered := b.count("ZCARD", b.k.Seen) == 1
			redistest.Want(b, name+": remembered", remembered, IsRemembered(token, item, time.Now()))
			b.do("HSET", b.k.Meta, name, "edited meanwhile")
			before := b.state()
			redistest.Want(b, name+": second try", b.tryOne(token, true, item), Receipt{Repeated, first.Due})
			b.wantState(before)
			redistest.Want(b, name+": meta", b.text("HGET", b.k.Meta, name), "edited meanwhile")
			redistest.Want(b, name+": remembered after the second try", b.count("ZCARD", b.k.Seen), 1)
			b.do("ZADD", b.k.Due, "4000000000007", name)
			redistest.Want(b, name+": third try, after a reschedule", b.tryOne(token, true, item).Verdict, Repeated)
			redistest.Want(b, name+": due time", b.dueOf(name), 4_000_000_000_007)
			b.do("ZREM", b.k.Due, name)
			redistest.Want(b, name+": fourth try, after a cancel", b.tryOne(token, true, item).Verdict, Repeated)
			redistest.Want(b, name+": first try, which comes late", b.enqueueOne(token, item).Verdict, Repeated)
			redistest.Want(b, name+": scheduled once more", b.count("ZCARD", b.k.Due), 0)
			b.do("DEL", b.k.Seen, b.k.Due, b.k.Payload, b.k.Meta)
		}
	})
}

// A queue with a history needs an entry in it, so the script leaves the message to enqueue_fresh.
func TestEnqueueOneLeavesQueuesWithAHistoryAlone(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.do("HSET", b.k.Policy, "history", "100")
		before := b.state()
		_, taken, err := EnqueueOne(b.ctx, b.c, b.k, Token{Name: "t", Window: time.Hour}, false, freshItems(1)[0])
		if taken || err != nil {
			b.Errorf("taken: %v, %v", taken, err)
		}
		b.wantState(before)
	})
}

// A call that is malformed, or that meets a key of another type, changes nothing.
func TestEnqueueOneIsRefusedWhole(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		item := Item{ID: "m", When: After(time.Second), Payload: []byte("p"), Meta: `{"h:a":"b"}`}
		with := func(change func(*Item)) Item {
			changed := item
			change(&changed)
			return changed
		}
		token := Token{Name: "t", Window: time.Hour}
		before := b.state()
		for want, c := range map[string]struct {
			token Token
			item  Item
		}{
			"when does not parse":              {token, with(func(i *Item) { i.When = "soon" })},
			"or ID does not parse":             {token, with(func(i *Item) { i.ID = "m" + Separator + "1-1" })},
			"token or ID does not parse":       {Token{Name: "a" + Separator, Window: time.Hour}, item},
			"token or token_ms does not parse": {Token{Name: "dead", Window: time.Hour}, item},
		} {
			_, _, err := EnqueueOne(b.ctx, b.c, b.k, c.token, false, c.item)
			if err == nil || !strings.Contains(err.Error(), want) {
				b.Errorf("got %v, want %q", err, want)
			}
			b.wantState(before)
		}
		for _, key := range []string{b.k.Due, b.k.Payload, b.k.Meta, b.k.Seen, b.k.Policy} {
			b.do("SET", key, "not this")
			_, _, err := EnqueueOne(b.ctx, b.c, b.k, token, false, item)
			if err == nil || !strings.Contains(err.Error(), "key "+key+" holds a string") {
				b.Errorf("%s is a string: %v", key, err)
			}
			b.do("DEL", key)
			b.wantState(before)
		}
	})
}

// If one of the later writes is refused, the script takes back the earlier ones. A right without which it could not do
// so, or could not wake the bridge, is asked for before the first write.
func TestEnqueueOneTakesBackWhatItHasWritten(t *testing.T) {
	t.Parallel()
	onServers(t, func(b *testQueue) {
		guest, may := limited(b)
		before := b.state()
		soon, later := After(time.Second), After(48*time.Hour)
		for refused, c := range map[string]struct {
			when  When
			done  string
			rules []string
		}{
			"the meta":                {soon, "", []string{"+@all", "-hset", fmt.Sprintf("(~%s +hset)", b.k.Payload)}},
			"the mark":                {soon, "", []string{"+@all", "-zadd", fmt.Sprintf("(~%s +zadd)", b.k.Due)}},
			"the due time":            {soon, "", []string{"+@all", "-zadd", fmt.Sprintf("(~%s +zadd)", b.k.Seen)}},
			"the first write":         {soon, "", []string{"+@all", "-hset"}},
			"the wake token":          {later, "", []string{"+@all", "-xadd"}},
			"the end of this mark":    {soon, "", []string{"+@all", "-zrem"}},
			"the end of an older one": {later, "older", []string{"+@all", "-zrem"}},
		} {
			may(c.rules...)
			item := Item{ID: "m", When: c.when, Payload: []byte("p"), Meta: `{"h:a":"b"}`}
			token := Token{Name: "t", Done: c.done, Window: time.Hour}
			_, _, err := EnqueueOne(b.ctx, guest.c, b.k, token, false, item)
			if !errors.Is(err, ErrDenied) {
				b.Errorf("without the right to write %s: %v", refused, err)
			}
			b.wantState(before)
			redistest.Want(b, "tokens after "+refused+" was refused", b.count("ZCARD", b.k.Seen), 0)
		}
	})
}

// Before, the repeat on a server that was full by then failed, although the message was scheduled.
func TestARepeatOfEnqueueOneSucceedsOnAFullServer(t *testing.T) {
	t.Parallel()
	b := newTestQueue(t, redistest.Own(t))
	token := Token{Name: "t", Window: time.Minute}
	item := Item{ID: "m", When: After(time.Hour), Payload: []byte("p")}
	first := b.enqueueOne(token, item)
	b.do("CONFIG", "SET", "maxmemory", "1")
	redistest.Want(b, "second try", b.tryOne(token, true, item), Receipt{Repeated, first.Due})
	item.ID = "other"
	_, _, err := EnqueueOne(b.ctx, b.c, b.k, token, false, item)
	if !errors.Is(err, ErrFull) || strings.Contains(err.Error(), "user_script") {
		b.Errorf("another message: %v", err) // the script must pass on the server's own error
	}
}

// On a full server, the script must still tell a first try that comes after its repeat that the message was taken.
func TestALateFirstTryOfEnqueueOneSucceedsOnAFullServer(t *testing.T) {
	t.Parallel()
	b := newTestQueue(t, redistest.Own(t))
	token := Token{Name: "t", Window: time.Minute}
	item := Item{ID: "m", When: After(time.Second), Payload: []byte("p")}
	b.tryOne(token, true, item)
	b.do("CONFIG", "SET", "maxmemory", "1")
	redistest.Want(b, "first try", b.tryOne(token, false, item).Verdict, Repeated)
}

// Redis 6.2 cannot tell a script which rights its user has. If the payload is refused there, and the user may not remove
// the token, the token must not stay: the producer calls Enqueue with it next, and that call would take the message for
// scheduled.
func TestARefusedPayloadOfEnqueueOneLeavesNoTokenOnRedis62(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	b := newTestQueue(t, s)
	guest, may := limited(b)
	may("+@all", "-zrem")
	b.do("SET", b.k.Payload, "not a hash")
	asOn62 := strings.Replace(enqueueOneScript.source, "local may = redis.acl_check_cmd", "local may = nil", 1)
	err := guest.try("EVAL", asOn62, "6", b.k.Due, b.k.Payload, b.k.Meta, b.k.Wake, b.k.Seen, b.k.Policy,
		"+1000", "m", "p", "t", "60000").Error()
	if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		b.Errorf("the payload is refused: %v", err)
	}
	redistest.Want(b, "keys of schedule and tokens", b.count("EXISTS", b.k.Due, b.k.Seen), 0)
}
