package lua

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

func (b *rig) expire(members ...string) []Expired {
	b.Helper()
	out, err := Expire(b.ctx, b.c, b.k, members)
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// An expired message is delivered to nobody: drain makes a dead letter of it that can be redriven, as of one that
// expired by itself.
func TestExpiredMessagesBecomeDeadLetters(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		meta := EncodeMeta(map[string]string{"trace": `ü/"`}, 5, time.UnixMilli(b.now()+7_200_000))
		b.enqueue(Item{ID: "plain", When: After(time.Hour), Payload: []byte("p")},
			Item{ID: "rich", When: After(time.Hour), Payload: []byte("r"), Meta: meta},
			Item{ID: "stays", When: After(time.Hour)})
		head, began := b.token(), b.now()
		wantList(b, "answers", b.expire("plain", "unknown", "rich"), ExpireNow, ExpireNone, ExpireNow)
		redistest.Want(b, "woke", b.token() != head, true)
		wantList(b, "a second time", b.expire("plain", "rich"), ExpireBefore, ExpireBefore)
		drained := b.drain(10)
		redistest.Want(b, "moved and buried", fmt.Sprint(drained.Moved, drained.Dead), "0 2")
		b.wantState("due=1 payload=0 meta=0 stream=0 dead=2 g=0", "g")
		wantList(b, "once they are dead letters", b.expire("plain", "rich"), ExpireNone, ExpireNone)
		for _, letter := range b.entries(b.k.Dead) {
			redistest.Want(b, "reason", letter.Reason, ReasonExpired)
			redistest.Want(b, "group", letter.Group, "")
			redistest.Want(b, "expired now", letter.Expires.UnixMilli() >= began && letter.Expires.UnixMilli() <= b.now(), true)
			if letter.ID == "rich" {
				redistest.Want(b, "header", letter.Headers["trace"], `ü/"`)
				redistest.Want(b, "max_attempts", letter.MaxAttempts, 5)
				redistest.Want(b, "payload", string(letter.Payload), "r")
			}
			wantList(b, "redriven", b.redrive(Redrive{Letter: letter.EntryID, When: After(0)}), RedriveScheduled)
		}
		redistest.Want(b, "delivered after all", b.drain(10).Moved, 2)
	})
}

// An expired retry becomes a dead letter of the group that it was for, and of no other.
func TestExpiredRetryIsALetterOfItsGroup(t *testing.T) {
	everywhere(t, func(b *rig) {
		held := b.deliver([]string{"g", "h"}, "m")[0]
		b.fail("g", held.EntryID, ActionRetry, ReasonMaxAttempts, "boom")
		member := b.texts("ZRANGE", b.k.Due, "0", "-1")[0]
		wantList(b, "answers", b.expire(member), ExpireNow)
		redistest.Want(b, "buried", b.drain(10).Dead, 1)
		letter := b.entries(b.k.Dead)[0]
		redistest.Want(b, "letter", fmt.Sprint(letter.Reason, letter.Group, letter.ID, letter.Attempt, letter.Error),
			fmt.Sprint(ReasonExpired, "g", "m", 2, "boom"))
	})
}

// A member that cannot be read becomes due at once, and drain reports what is wrong with it. A meta without room for an
// expiry stays as it is.
func TestOddMembersExpire(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		far := fmt.Sprint(b.now() + 3_600_000)
		large := `{"h:a":"` + strings.Repeat("a", 512<<10-11) + `"}`
		for member, meta := range map[string]string{"list": "[]", "huge": strings.Repeat(" ", 600_000), "number": `{"h:a":1}`,
			"\xff": "", "": "", "m" + Separator + "g" + Separator + "1-1": "", "full": large, "due": `{"expires_ms":"5"}`} {
			due := far
			if member == "due" {
				due = "5"
			}
			b.do("ZADD", b.k.Due, due, member)
			if meta != "" {
				b.do("HSET", b.k.Meta, member, meta)
			}
		}
		wantList(b, "answers", b.expire("list", "huge", "number", "\xff", "", "m"+Separator+"g"+Separator+"1-1", "full", "due"),
			ExpireNow, ExpireNow, ExpireNow, ExpireNow, ExpireNow, ExpireNow, ExpireNoRoom, ExpireBefore)
		redistest.Want(b, "what has no room", b.hash(b.k.Meta)["full"] == large, true)
		redistest.Want(b, "buried", b.drain(100).Dead, 7)
		reasons := map[string]int{}
		for _, letter := range b.entries(b.k.Dead) {
			reasons[letter.Reason]++
		}
		redistest.Want(b, "reasons", fmt.Sprint(reasons), fmt.Sprint(map[string]int{ReasonMalformed: 6, ReasonExpired: 1}))
	})
}

// A paused queue keeps expired messages until it is resumed.
func TestExpiredMessagesWaitWhileTheQueueIsHeld(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.enqueue(Item{ID: "m", When: After(time.Hour)})
		b.do("HSET", b.k.Policy, "held", "1")
		wantList(b, "answers", b.expire("m"), ExpireNow)
		redistest.Want(b, "drained while held", b.drain(10).Dead, 0)
		b.do("HDEL", b.k.Policy, "held")
		redistest.Want(b, "drained then", b.drain(10).Dead, 1)
	})
}

// Members with more bytes of meta than one call reads take several calls, and each gets its answer.
func TestExpireGoesOnBehindItsBudget(t *testing.T) {
	everywhere(t, func(b *rig) {
		var members []string
		for i := range 12 {
			members = append(members, fmt.Sprint("m", i))
			b.do("ZADD", b.k.Due, fmt.Sprint(b.now()+3_600_000), members[i])
			b.do("HSET", b.k.Meta, members[i], `{"h:a":"`+strings.Repeat("a", 300_000)+`"}`)
		}
		for i, got := range b.expire(members...) {
			redistest.Want(b, members[i], got, ExpireNow)
		}
	})
}

// Several due times are changed in one request, each by its own script call, also on a server that does not know the
// script yet.
func TestRescheduleEach(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.enqueue(Item{ID: "a", When: After(time.Hour)}, Item{ID: "b", When: After(time.Hour)})
		moved, err := RescheduleEach(b.ctx, b.c, b.k, []string{"a", "gone", "b"}, []When{"5", "6", "7"})
		if err != nil {
			b.Fatal(err)
		}
		wantList(b, "moved", moved, true, false, true)
		redistest.Want(b, "due", fmt.Sprint(b.dueOf("a"), b.dueOf("b")), "5 7")
		if moved, err = RescheduleEach(b.ctx, b.c, b.k, nil, nil); err != nil || len(moved) != 0 {
			b.Fatal(moved, err)
		}
	})
}
