package lua

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// Moved is the result of Move.
type Moved int

// Results of Move.
const (
	MoveDone Moved = iota
	// MoveOccupied: the message stays, because its ID is scheduled, or in a dedup window, in the other partition.
	MoveOccupied
	// MoveLater: the message has changed since the export, or another caller moves it, or has moved it less than
	// moveWindow ago.
	MoveLater
)

// moveWindow is how long the target partition remembers which caller added the message. It is much longer than a call
// may take.
const moveWindow = time.Minute

// Place returns the text that decides the partition of a scheduled message: its ordering key or, without one, its ID.
func (e Exported) Place() string {
	id := ParseMember(e.Member).ID
	if entry, ok := DecodeMeta(id, e.Meta); ok {
		return cmp.Or(entry.Extra[FieldKey], id)
	}
	return id
}

// dueText returns the due time in whole Unix ms. For a message that waits for its ordering key, this is not the score:
// the drain of the other partition decides again whether the message must wait.
func (e Exported) dueText() string {
	score, err := strconv.ParseFloat(e.Score, 64)
	if err != nil || math.IsInf(score, -1) {
		return "0"
	}
	due, _ := DueScore(score)
	return strconv.FormatFloat(min(math.Ceil(due), math.MaxFloat64), 'f', 0, 64)
}

// Move moves a scheduled message from one partition (the source) to another (the target). one is the message as Export
// returned it; to are the keys of the partition to which its Place belongs. The message keeps its ID, due time, payload
// and meta. Move takes three to four round trips.
//
// Move first looks whether the source still has the message as Export returned it, because a message that was cancelled
// since then must not become ready in the target. The look also fails if the message cannot be removed from the source,
// for example because the user may not: otherwise each call would add it to the target again.
//
// Then Move adds the message to the target by the script enqueue, and removes it from the source by withdraw. Nothing
// is lost, wherever Move stops. If it stops between the two, both partitions have the message, and a call after
// moveWindow removes it from the source. If the target has delivered the message before that call, the call adds it to
// the target again, and the message is delivered twice.
//
// The token of enqueue makes one caller the owner of the move. Without the token, two callers A and B could lose the
// message:
//
//  1. A adds it to the target. B finds it in the target, and removes it from the source.
//  2. A cannot remove it from the source, concludes that it was cancelled, and removes it from the target.
//
// So B leaves the message to A until moveWindow is over. A removes the message from the target only while moveWindow
// surely lasts. A process that stood still for longer, for example in a suspended machine, cannot know whether B has
// finished the move. Then a message that was cancelled between the two steps may be delivered.
//
// The token stays when the message is removed from the source, because another caller may have looked before and not
// yet added the message. If the same message is scheduled in the source again, its next move waits for up to
// moveWindow.
func Move(ctx context.Context, c rueidis.Client, from, to Keys, one Exported) (Moved, error) {
	return one.move(ctx, c, from, to, time.Now)
}

// move is Move, with now as the clock of this machine.
func (e Exported) move(ctx context.Context, c rueidis.Client, from, to Keys, now func() time.Time) (Moved, error) {
	here, err := e.isIn(ctx, c, from)
	if err != nil || !here {
		return MoveLater, err
	}
	began := now().Round(0) // without the monotonic clock, which stands still in a suspended machine
	receipt, err := e.enqueue(ctx, c, to)
	if err != nil {
		return MoveLater, err
	}
	own := receipt.Verdict == Scheduled || receipt.Verdict == Ready
	if !own && receipt.Verdict != Duplicate {
		return MoveLater, nil
	}
	if !own {
		there := e
		there.Score = e.dueText()
		known, err := there.isIn(ctx, c, to)
		if err != nil || !known {
			return MoveOccupied, err
		}
	}
	removed, err := Withdraw(ctx, c, from, e)
	switch {
	case err != nil:
		return MoveLater, err
	case removed:
		return MoveDone, nil
	case !own, now().Round(0).Sub(began) > moveWindow/2:
		return MoveLater, nil
	}
	e.Score = strconv.FormatInt(receipt.Due.UnixMilli(), 10)
	// the message was cancelled or changed in the source, so the target must not deliver it
	_, err = Withdraw(ctx, c, to, e)
	return MoveLater, err
}

// enqueue adds the message to a partition, unless its ID is known there.
func (e Exported) enqueue(ctx context.Context, c rueidis.Client, to Keys) (Receipt, error) {
	item := Item{ID: e.Member, When: When(e.dueText()), Payload: e.Payload, Meta: e.Meta, Dedup: Refuse}
	token := Token{Name: e.digest(), Window: moveWindow}
	receipts, err := Enqueue(ctx, c, to, token, []Item{item}, Durability{})
	if err == nil && receipts[0].Verdict == Malformed {
		// enqueue refuses a due message with a malformed meta. Scheduled for 1 ms later, it is taken, and drain makes a
		// dead letter of it.
		item.When, token.Name = After(time.Millisecond), token.Name+"-malformed"
		receipts, err = Enqueue(ctx, c, to, token, []Item{item}, Durability{})
	}
	if err != nil {
		return Receipt{}, err
	}
	return receipts[0], nil
}

// digest returns a name for this version of the message. No other version and no other message has the same name. The
// name does not depend on whether the message waits for its ordering key, because that wait can end between two
// exports.
func (e Exported) digest() string {
	all := sha256.New()
	for _, text := range []string{e.Member, e.dueText(), string(e.Payload), e.Meta} {
		all.Write([]byte(strconv.Itoa(len(text)) + ":" + text))
	}
	return "move-" + hex.EncodeToString(all.Sum(nil)[:16])
}

var withdrawScript = load("withdraw", []string{"due", "payload", "meta", "turns", "wake"},
	[]string{"member", "score", "body", "fields", "look"}, nil)

// Withdraw removes a message from the schedule of a partition, because another partition has it now. If the message is
// a retry, it no longer holds its ordering key in this partition. Withdraw returns false if the message is gone, or has
// another due time, payload or meta.
func Withdraw(ctx context.Context, c rueidis.Client, k Keys, one Exported) (bool, error) {
	return one.withdraw(ctx, c, k, false)
}

// isIn reports whether the schedule of a partition has the message. It fails where Withdraw would fail. One round trip.
func (e Exported) isIn(ctx context.Context, c rueidis.Client, k Keys) (bool, error) {
	return e.withdraw(ctx, c, k, true)
}

func (e Exported) withdraw(ctx context.Context, c rueidis.Client, k Keys, look bool) (bool, error) {
	n, err := withdrawScript.integer(ctx, c, []string{k.Due, k.Payload, k.Meta, k.Turns, k.Wake},
		[]string{e.Member, e.Score, rueidis.BinaryString(e.Payload), e.Meta, oneIf(look)})
	return n == 1, err
}
