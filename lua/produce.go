package lua

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/rueidis"
)

// Verdict is the result of Enqueue for one message.
type Verdict int

// Verdicts of Enqueue.
const (
	Malformed Verdict = -1 // the message's meta is not an object of strings
	Duplicate Verdict = 0  // the message's ID is scheduled already, or in its dedup window
	Scheduled Verdict = 1
	Ready     Verdict = 2 // the message went straight into the stream
	Repeated  Verdict = 3 // an earlier call with the same token took the message
	Replaced  Verdict = 4 // the message was scheduled, and replaced the scheduled message with its ID
)

// When is a point in time in the form that scripts take. After and At return one.
type When string

// After returns the time d after the script runs, in whole milliseconds, rounded up.
func After(d time.Duration) When {
	return When("+" + millis(d))
}

// millis returns d in whole milliseconds, rounded up, so that no message is early.
func millis(d time.Duration) string {
	n := int64(d / time.Millisecond)
	if d > 0 && d%time.Millisecond != 0 {
		n++
	}
	return strconv.FormatInt(n, 10)
}

// At returns a point in time, in Unix milliseconds, rounded up: never early.
func At(t time.Time) When {
	ms := t.UnixMilli()
	if t.After(time.UnixMilli(ms)) {
		ms++
	}
	return When(strconv.FormatInt(ms, 10))
}

// Dedup says how an ID is compared with known ones.
type Dedup string

// Values of Dedup, besides the windows of Window.
const (
	Fresh  Dedup = ""  // the ID was just made and is unique, so it is not compared
	Refuse Dedup = "0" // the message is refused if its ID is scheduled or in a dedup window

	// With these, the message replaces the scheduled message with the same ID: always, or only if the new due time is
	// later, or earlier. If no such message is scheduled, it is taken unless the ID is in a dedup window.
	Replace        Dedup = "replace"
	ReplaceLater   Dedup = "later"
	ReplaceEarlier Dedup = "earlier"
)

// Window returns the Dedup that refuses a known ID, and remembers the ID for d from now.
func Window(d time.Duration) Dedup { return Dedup(millis(max(time.Millisecond, d))) }

// Item is one message of an enqueue.
type Item struct {
	ID      string
	When    When
	Payload []byte
	Meta    string // from EncodeMeta
	Dedup   Dedup
}

// Receipt is the result of Enqueue for one Item.
type Receipt struct {
	Verdict Verdict
	Due     time.Time
}

// Token names one enqueue call, so that the call can be repeated after a lost reply.
type Token struct {
	Name   string
	Done   string        // the token of the caller's previous call, whose reply has arrived; "" = none
	Window time.Duration // how long the server remembers the token
}

var enqueueScript = load("enqueue",
	[]string{"due", "payload", "meta", "stream", "wake", "seen", "policy", "history", "turns"},
	[]string{"token", "done", "token_ms"},
	[]string{"id", "when", "payload", "meta", "dedup"})

// Enqueue takes messages into a queue in one script call, and then waits for d. Either it fails and nothing was taken
// (but see Ambiguous), or each item has a receipt, in order. ErrFull: the server refused the whole call. With
// ErrNotDurable, the receipts are returned and valid, too.
func Enqueue(ctx context.Context, c rueidis.Client, k Keys, token Token, items []Item,
	d Durability) ([]Receipt, error) {
	args := make([]string, 0, 4+5*len(items))
	args = append(args, token.Name, token.Done, millis(token.Window))
	for _, it := range items {
		args = append(args, it.ID, string(it.When), rueidis.BinaryString(it.Payload), it.Meta, string(it.Dedup))
	}
	keys := []string{k.Due, k.Payload, k.Meta, k.Stream, k.Wake, k.Seen, k.Policy, k.History, k.Turns}
	reply, err := enqueueScript.integers(ctx, c, keys, append(args, k.Actor), 2*len(items), d)
	if reply == nil && err != nil {
		return nil, err
	}
	receipts := make([]Receipt, len(items))
	for i := range receipts {
		receipts[i] = Receipt{Verdict(reply[2*i]), time.UnixMilli(reply[2*i+1])}
	}
	return receipts, err
}

var enqueueFreshScript = load("enqueue_fresh",
	[]string{"due", "payload", "meta", "wake", "seen", "policy", "history"},
	[]string{"token", "done", "token_ms", "described"},
	[]string{"when", "id"})

// AllFresh reports whether EnqueueFresh accepts the items: all have a payload and a fresh ID, and none is due yet. now
// is the caller's time.
func AllFresh(items []Item, now time.Time) bool {
	last := When("")
	for i := range items {
		it := &items[i]
		if it.Dedup != Fresh || len(it.Payload) == 0 {
			return false
		}
		if it.When != last && !it.When.due(now).After(now) {
			return false
		}
		last = it.When
	}
	return len(items) > 0
}

// due returns the point in time for a call that is made at now; zero if w does not parse.
func (w When) due(now time.Time) time.Time {
	delay, relative := strings.CutPrefix(string(w), "+")
	ms, err := strconv.ParseInt(delay, 10, 64)
	switch {
	case err != nil:
		return time.Time{}
	case relative:
		return time.UnixMilli(now.UnixMilli() + ms)
	default:
		return time.UnixMilli(ms)
	}
}

// EnqueueFresh is Enqueue at half the cost, for items for which AllFresh is true. Plain commands write the payloads and
// metas, and the script that schedules the messages follows on the same connection. If the script refuses the call, no
// message was taken; payloads and metas may be left, and a bridge deletes them within minutes. The script may refuse a
// call that Enqueue accepts. Then the caller can call Enqueue.
func EnqueueFresh(ctx context.Context, c rueidis.Client, k Keys, token Token, items []Item) ([]Receipt, error) {
	payloadOf := func(it *Item) string { return rueidis.BinaryString(it.Payload) }
	cmds := []rueidis.Completed{hset(c, k.Payload, items, payloadOf)}
	var described []string
	args := append(make([]string, 0, 5+2*len(items)), token.Name, token.Done, millis(token.Window), "")
	for i := range items {
		it := &items[i]
		if it.Meta != "" {
			described = append(described, it.ID)
		}
		args = append(args, string(it.When), it.ID)
	}
	if described != nil {
		args[3] = strings.Join(described, Separator)
		cmds = append(cmds, hset(c, k.Meta, items, func(it *Item) string { return it.Meta }))
	}
	reply, err := enqueueFreshScript.runBehind(ctx, c, cmds,
		[]string{k.Due, k.Payload, k.Meta, k.Wake, k.Seen, k.Policy, k.History}, append(args, k.Actor))
	if err != nil {
		return nil, err
	}
	list, err := reply.AsIntSlice()
	if err == nil && len(list) != 2 {
		err = fmt.Errorf("%d values where 2 belong", len(list))
	}
	if err != nil {
		return nil, enqueueFreshScript.unexpected(err)
	}
	receipts, asked := make([]Receipt, len(items)), time.UnixMilli(list[1])
	for i := range items {
		receipts[i] = Receipt{Verdict(list[0]), items[i].When.due(asked)}
	}
	return receipts, nil
}

// MostOneBytes is the most bytes of payload and meta for which EnqueueOne costs the server less than EnqueueFresh.
const MostOneBytes = 4096

var enqueueOneScript = load("enqueue_one",
	[]string{"due", "payload", "meta", "wake", "seen", "policy"},
	[]string{"when", "id", "body", "token", "token_ms", "done", "fields", "again"}, nil).leavingOut(3)

// EnqueueOne takes one small message for which AllFresh is true. It costs the server about three fifths of what
// EnqueueFresh costs. If taken is false and err is nil, the queue keeps a history, and nothing was changed: call
// EnqueueFresh. With an error nothing was taken (but see Ambiguous).
//
// again tells that the server may have executed an earlier try of this call, or may execute it later. The server
// remembers the token of a repeat. It remembers the token of a first try only if the message is due within the
// token's window: see IsRemembered. A message that is due later is scheduled again if the reply to the first try is
// lost, somebody cancels the message or makes it due, and the caller repeats the call.
func EnqueueOne(ctx context.Context, c rueidis.Client, k Keys, token Token, again bool,
	item Item) (r Receipt, taken bool, err error) {
	repeated := ""
	if again {
		repeated = "1"
	}
	args := []string{string(item.When), item.ID, rueidis.BinaryString(item.Payload), token.Name, millis(token.Window),
		token.Done, item.Meta, repeated}
	for args[len(args)-1] == "" && len(args) > len(enqueueOneScript.args)-enqueueOneScript.fewer {
		args = args[:len(args)-1] // each argument costs the server time
	}
	reply, err := enqueueOneScript.run(ctx, c, []string{k.Due, k.Payload, k.Meta, k.Wake, k.Seen, k.Policy}, args)
	if err != nil {
		return Receipt{}, false, err
	}
	verdict, asked := Scheduled, int64(0)
	if list, listErr := reply.AsIntSlice(); listErr == nil && len(list) == 1 {
		verdict, asked = Repeated, list[0]
	} else if asked, err = reply.AsInt64(); err != nil || asked == 0 {
		return Receipt{}, false, enqueueOneScript.unexpected(err)
	}
	return Receipt{verdict, item.When.due(time.UnixMilli(asked))}, true, nil
}

// IsRemembered reports whether the server remembers the token of a first try of EnqueueOne at the time now. A message
// that is due after the token's window is not remembered, because a repeat finds it in the schedule. The answer may
// be wrong if the clocks of caller and server differ. This is harmless: the next call clears a token that is not
// there, or does not clear one, and the token ends with its window.
func IsRemembered(token Token, item Item, now time.Time) bool {
	return !item.When.due(now).After(now.Add(token.Window))
}

// EncodeMeta returns the meta of a first-time message: a JSON object of strings, or "" without any.
func EncodeMeta(headers map[string]string, maxAttempts int, expires time.Time, more ...FieldValue) string {
	if len(headers) == 0 && maxAttempts == 0 && expires.IsZero() && len(more) == 0 {
		return ""
	}
	meta := make(map[string]string, len(headers)+2)
	for name, value := range headers {
		meta[HeaderPrefix+name] = value
	}
	if maxAttempts != 0 {
		meta[FieldMaxAttempts] = strconv.Itoa(maxAttempts)
	}
	if !expires.IsZero() {
		meta[FieldExpires] = strconv.FormatInt(expires.UnixMilli(), 10)
	}
	for _, f := range more {
		meta[f.Field] = f.Value
	}
	text, err := json.Marshal(meta)
	if err != nil {
		panic(err) // a map of strings always encodes
	}
	return string(text)
}

// DecodeMeta reads the meta of a member of the schedule into an Entry. ok is false if the meta is not an object of
// strings, or has a payload or a due time. Such a member becomes a dead letter when it is due.
func DecodeMeta(member, meta string) (e Entry, ok bool) {
	e = Entry{ID: member, Attempt: 1}
	if meta == "" {
		return e, true
	}
	var fields map[string]*string // pointers, so that null can be told from a string
	if json.Unmarshal([]byte(meta), &fields) != nil || fields == nil || !utf8.ValidString(meta) {
		return e, false
	}
	ok = !HasHalfCharacter([]byte(meta))
	for name, value := range fields {
		if value == nil || name == FieldPayload || name == FieldDue {
			ok = false
			continue
		}
		e.set(name, *value)
	}
	return e, ok
}

var cancelScript = load("cancel",
	[]string{"due", "payload", "meta", "seen", "policy", "history", "turns", "wake"}, nil, []string{"id"})

// Cancel removes messages from the schedule. True: the message will never be delivered; false: it was not scheduled.
// Afterwards it waits for d: with ErrNotDurable it returns the answers, too, and they are valid. One round trip, and
// one wait, for each 16 MiB of removed messages, and for each 1 MiB of IDs.
func Cancel(ctx context.Context, c rueidis.Client, k Keys, ids []string, d Durability) ([]bool, error) {
	var waited error
	reply, err := inParts(ids, func(ids []string) ([]int64, error) {
		n := fitting(ids)
		reply, err := cancelArgs(ctx, c, k, ids[:n], d)
		if reply != nil && err != nil {
			waited, err = err, nil
		}
		return append(reply, slices.Repeat([]int64{notReached}, len(ids)-n)...), err
	})
	if err == nil {
		err = waited
	}
	return truths(reply), err
}

// Version tells the message that is scheduled under an ID from other messages that were scheduled under the same ID. It
// is made of the due time, the payload's length and the meta. It is empty if nothing is scheduled. See Marked.
type Version string

const versionPrefix = Separator + "version "

// Due returns the due time of the version, Unix ms; zero for the empty one.
func (v Version) Due() int64 {
	at, _, _ := strings.Cut(strings.TrimPrefix(string(v), versionPrefix), " ")
	due, err := strconv.ParseFloat(at, 64)
	if err != nil {
		return 0
	}
	return int64(min(due, 1e18)) // a member with an infinite score is never due
}

var versionsScript = load("versions", []string{"due", "payload", "meta"}, nil, []string{"id"})

// Versions returns the versions of messages, by their IDs. One round trip for each 1 MiB of meta, and for each 1 MiB of
// IDs.
func Versions(ctx context.Context, c rueidis.Client, k Keys, ids []string) ([]Version, error) {
	versions := make([]Version, 0, len(ids))
	for len(versions) < len(ids) {
		rest := ids[len(versions):]
		rest = rest[:fitting(rest)]
		reply, err := versionsScript.list(ctx, c, []string{k.Due, k.Payload, k.Meta}, rest, len(rest))
		if err != nil {
			return nil, err
		}
		texts, err := textsOf(reply)
		if err == nil && texts[0] == strconv.Itoa(notReached) {
			err = errors.New("nothing was looked at")
		}
		if err != nil {
			return nil, versionsScript.unexpected(err)
		}
		for _, text := range texts {
			if text == strconv.Itoa(notReached) {
				break
			}
			versions = append(versions, Version(text))
		}
	}
	return versions, nil
}

// CancelVersions is Cancel for one version of each message. If another version is scheduled, it stays, and the result
// is false. The empty version stands for any version.
func CancelVersions(ctx context.Context, c rueidis.Client, k Keys, ids []string, versions []Version,
	d Durability) ([]bool, error) {
	var notDurable error
	indexes := make([]int, len(ids))
	for i := range indexes {
		indexes[i] = i
	}
	reply, err := inParts(indexes, func(indexes []int) ([]int64, error) {
		var args []string
		var argOf []int // for each message of this call, the index of its ID in args
		for _, i := range indexes[:fitting(ids[indexes[0]:])] {
			argOf = append(argOf, len(args))
			args = append(args, ids[i])
			if versions[i] != "" {
				args = append(args, string(versions[i]))
			}
		}
		replies, err := cancelArgs(ctx, c, k, args, d)
		if replies == nil {
			return nil, err
		}
		notDurable = cmp.Or(err, notDurable)
		answers := slices.Repeat([]int64{notReached}, len(indexes))
		for i := range argOf {
			answers[i] = replies[argOf[i]]
		}
		return answers, nil
	})
	return truths(reply), cmp.Or(err, notDurable)
}

func cancelArgs(ctx context.Context, c rueidis.Client, k Keys, args []string, d Durability) ([]int64, error) {
	keys := []string{k.Due, k.Payload, k.Meta, k.Seen, k.Policy, k.History, k.Turns, k.Wake}
	return cancelScript.integers(ctx, c, keys, append(slices.Clone(args), k.Actor), len(args), d)
}

// Marked returns an equivalent meta that ends in random white space. So no two messages that were written with it have
// the same Version, even if all else is equal.
func Marked(meta string) string {
	if meta == "" {
		meta = "{}"
	}
	mark := []byte(meta)
	for n := rand.Uint64(); n > 0; n >>= 1 {
		mark = append(mark, " \t"[n&1])
	}
	return string(mark)
}

// maxSent bounds the bytes of one script call's arguments, if an argument may have any size. The server reads all
// arguments before it begins the script.
const maxSent = 1 << 20

// fitting returns how many of the words may be sent in one call; at least one if there is any.
func fitting(words []string) int {
	n, bytes := 0, 0
	for n < len(words) && bytes < maxSent {
		bytes += len(words[n])
		n++
	}
	return n
}

var rescheduleScript = load("reschedule",
	[]string{"due", "wake", "policy", "history", "meta", "turns"}, []string{"id", "when"}, nil)

// rescheduleKeys returns the keys of the scripts that change due times.
func rescheduleKeys(k Keys) []string {
	return []string{k.Due, k.Wake, k.Policy, k.History, k.Meta, k.Turns}
}

// Reschedule changes the due time of a message that is still scheduled, returns the new due time, and then waits for d.
// moved is false if the message was not scheduled. With ErrNotDurable, the results are returned and valid, too.
func Reschedule(ctx context.Context, c rueidis.Client, k Keys, id string, when When,
	d Durability) (due time.Time, moved bool, err error) {
	reply, err := rescheduleScript.integers(ctx, c, rescheduleKeys(k), []string{id, string(when), k.Actor}, 2, d)
	if reply == nil {
		return time.Time{}, false, err
	}
	return time.UnixMilli(reply[1]), reply[0] == 1, err
}
