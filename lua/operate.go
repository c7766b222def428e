package lua

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// Drained is the result of one drain.
type Drained struct {
	Moved, Dead int // how many messages became ready, and how many became dead letters

	// Wait is the time until the next message is due, or may pass the limit in Held. Zero: more messages are due now.
	// Negative: nothing is scheduled, or the queue is held.
	Wait time.Duration
	// Late is by how much the oldest due message was late, in whole milliseconds, without the delay by the rate. It is
	// zero for due times before 2001, with which some programs mean now.
	Late time.Duration

	Refusal string // the server's error if the stream refused an entry; "" = it refused none
	// DeadRefusal is the server's error if the dead-letter stream refused a letter. That message waits another minute,
	// and the drain goes on with the others.
	DeadRefusal string

	Held string // the limit that holds due messages back: HeldByRate or HeldByReadyLimit; "" = none
}

// Limits of a policy that hold due messages back.
const (
	HeldByRate       = "rate"
	HeldByReadyLimit = "ready_limit"
)

var drainScript = load("drain",
	[]string{"due", "payload", "meta", "stream", "dead", "turns", "policy", "rate", "history"},
	[]string{"limit", "max_bytes"}, nil)

// Drain moves at most limit due messages into the stream, oldest due first, and stops after maxBytes.
func Drain(ctx context.Context, c rueidis.Client, k Keys, limit, maxBytes int) (Drained, error) {
	message, err := drainScript.run(ctx, c, []string{k.Due, k.Payload, k.Meta, k.Stream, k.Dead, k.Turns, k.Policy, k.Rate,
		k.History}, []string{strconv.Itoa(limit), strconv.Itoa(maxBytes), k.Actor})
	if err != nil {
		return Drained{}, err
	}
	if wait, err := message.AsInt64(); err == nil { // nothing is due, or the queue is held
		return Drained{Wait: duration(wait, time.Microsecond)}, nil
	}
	drained, err := drainedOf(message)
	return drained, drainScript.unexpected(err)
}

// drainedOf parses the list that drain returns if messages are due.
func drainedOf(message rueidis.RedisMessage) (Drained, error) {
	reply, err := message.ToArray()
	if err == nil && len(reply) != 7 {
		err = fmt.Errorf("%d values where 7 belong", len(reply))
	}
	if err != nil {
		return Drained{}, err
	}
	var n [4]int64
	for i, at := range []int{0, 1, 2, 5} {
		if n[i], err = reply[at].AsInt64(); err != nil {
			return Drained{}, err
		}
	}
	texts, err := textsOf([]rueidis.RedisMessage{reply[3], reply[4], reply[6]})
	if err != nil {
		return Drained{}, err
	}
	return Drained{
		Moved: int(n[0]), Dead: int(n[1]), Wait: duration(n[2], time.Microsecond), Late: duration(n[3], time.Millisecond),
		Refusal: texts[0], DeadRefusal: texts[1], Held: texts[2],
	}, nil
}

// duration returns n units, at most the longest duration, which is 292 years. Other programs may schedule messages for
// later times.
func duration(n int64, unit time.Duration) time.Duration {
	return time.Duration(min(n, int64(math.MaxInt64/unit))) * unit
}

// Trimmed is the result of one trim.
type Trimmed struct {
	Freed   int    // how many entries were freed
	Cursor  string // where the next sweep begins; "" = the sweep has come to the end
	Groups  int    // how many groups the stream has; if it has none, nothing is freed
	Windows int    // how many ended dedup windows were removed
	Turns   bool   // whether a message has an ordering key, so that PassTurns has work to do
	Leases  int    // how many leases were removed, because no consumer holds their entries any more
	Cursors int    // how many cursors of progress were removed, for the same reason
}

var trimScript = load("trim", []string{"stream", "seen", "turns", "leases", "progress"},
	[]string{"cursor", "limit", "max_bytes"}, nil)

// Trim frees entries that every group has acknowledged. It frees those at the beginning of the stream. If there are
// none, it sweeps from cursor on, behind entries that stay pending. If maxBytes is zero, it does not sweep.
func Trim(ctx context.Context, c rueidis.Client, k Keys, cursor string, limit, maxBytes int) (Trimmed, error) {
	if cursor == "" {
		cursor = "0-0"
	}
	reply, err := trimScript.list(ctx, c, []string{k.Stream, k.Seen, k.Turns, k.Leases, k.Progress}, []string{
		cursor, strconv.Itoa(limit),
		strconv.Itoa(maxBytes)}, 7)
	if err != nil {
		return Trimmed{}, err
	}
	var t Trimmed
	var turns int
	for i, n := range map[int]*int{0: &t.Freed, 2: &t.Groups, 3: &t.Windows, 4: &turns, 5: &t.Leases, 6: &t.Cursors} {
		v, err := reply[i].AsInt64()
		if err != nil {
			return Trimmed{}, trimScript.unexpected(err)
		}
		*n = int(v)
	}
	t.Turns = turns > 0
	if t.Cursor, err = reply[1].ToString(); t.Cursor == "0-0" {
		t.Cursor = ""
	}
	return t, trimScript.unexpected(err)
}

var heartbeatScript = load("heartbeat", []string{"bridges"}, []string{"bridge", "timeout"}, nil)

// Heartbeat records that a bridge is alive. It returns the server's time and the live bridges with this one among them,
// at most about 5,000. These are enough: by rendezvous hashing, the owner of a queue among all bridges is also its
// owner in any subset that contains it. At worst, other bridges serve the queue, too.
func Heartbeat(ctx context.Context, c rueidis.Client, g Globals, bridge string,
	timeout time.Duration) (now time.Time, live []string, err error) {
	reply, err := heartbeatScript.list(ctx, c, []string{g.Bridges},
		[]string{bridge, strconv.FormatInt(timeout.Milliseconds(), 10)}, 1)
	if err != nil {
		return now, nil, err
	}
	ms, err := reply[0].AsInt64()
	if err != nil {
		return now, nil, heartbeatScript.unexpected(err)
	}
	live, err = textsOf(reply[1:])
	return time.UnixMilli(ms), live, heartbeatScript.unexpected(err)
}

func textsOf(reply []rueidis.RedisMessage) ([]string, error) {
	out := make([]string, len(reply))
	for i := range reply {
		var err error
		if out[i], err = reply[i].ToString(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

var configureScript = load("configure", []string{"settings"}, nil, []string{"field", "value"})

// Configure writes settings to the policy of a partition or to the defaults, and a token to the wake stream of either.
// An empty value removes a field. A bridge that was not woken sees the settings at its next look. SetPolicy is for the
// changes that people make.
func Configure(ctx context.Context, c rueidis.Client, settings, wake string, values []FieldValue) error {
	_, err := configureScript.integer(ctx, c, []string{settings}, pairs(nil, values))
	if err == nil {
		_ = signal(ctx, c, wake, "settings")
	}
	return err
}

// pairs appends fields and values to the arguments of a script.
func pairs(args []string, values []FieldValue) []string {
	for _, v := range values {
		args = append(args, v.Field, v.Value)
	}
	return args
}

var setPolicyScript = load("set_policy", []string{"policy", "changes"}, []string{"expected", "by"},
	[]string{"field", "value"})

// SetPolicy writes settings to the policy of partition 0, records the changes with the actor of the keys, and writes a
// token to the wake stream. An empty value removes a field. If a field has neither its expected value nor its new one,
// SetPolicy writes nothing and returns false; an empty expected value stands for no field. The call may be repeated.
func SetPolicy(ctx context.Context, c rueidis.Client, k Keys, expected, values []FieldValue) (done bool, err error) {
	args := pairs(pairs([]string{strconv.Itoa(len(expected)), k.Actor}, expected), values)
	changed, err := setPolicyScript.integer(ctx, c, []string{k.Policy, k.Changes}, args)
	if err != nil || changed < 0 {
		return false, err
	}
	_ = signal(ctx, c, k.Wake, "settings")
	return true, nil
}

// EndHold removes the field held from the policy of a partition. It wakes no bridge, because the partition may not
// exist any more.
func EndHold(ctx context.Context, c rueidis.Client, k Keys) error {
	_, err := configureScript.integer(ctx, c, []string{k.Policy}, []string{"held", ""})
	return err
}

var signalScript = load("signal", []string{"wake"}, []string{"field"}, nil)

// signal adds a wake token. If it fails, messages may be late, but none is lost.
func signal(ctx context.Context, c rueidis.Client, wake, field string) error {
	_, err := signalScript.integer(ctx, c, []string{wake}, []string{field})
	return err
}

// Redrive is one dead letter to schedule again.
type Redrive struct {
	Letter  string // ID in the stream of dead letters
	When    When
	Payload *[]byte // the new payload; nil = keep the letter's payload
	Fields  string  // from EncodeMeta: replaces headers, max_attempts and expires_ms; "" = keep them
	To      string  // the group that gets the message; "" = the group in which it failed

	// Moved has all fields of a letter in another partition; nil = the letter is in this partition. The message is
	// scheduled in this partition, under a name that makes a repeated call harmless while the message is scheduled. The
	// caller then deletes the letter in the other partition. Payload is ignored: put a new payload into Moved.
	Moved []FieldValue
}

// Redriven is the result of one Redrive.
type Redriven int

// Outcomes of RedriveDead.
const (
	RedriveGroupGone  Redriven = -4 // the stream does not have the group: give another group
	RedriveUnreadable Redriven = -3 // the fields besides the payload cannot be read, or are too large: give Fields
	RedriveMalformed  Redriven = -2 // Fields is not an object of strings
	RedriveNoPayload  Redriven = -1 // the body was lost or unreadable: give Payload
	RedriveGone       Redriven = 0  // another call has redriven or purged the letter
	RedriveScheduled  Redriven = 1
)

var redriveScript = load("redrive",
	[]string{"dead", "due", "payload", "meta", "wake", "stream", "policy", "history"}, nil,
	[]string{"letter", "when", "edited", "payload", "fields", "to"})

// RedriveDead schedules dead letters again, each for the group in which it failed or for another one, with attempt 1
// and without its old expiry.
func RedriveDead(ctx context.Context, c rueidis.Client, k Keys, letters []Redrive) ([]Redriven, error) {
	reply, err := inParts(letters, func(letters []Redrive) ([]int64, error) {
		args := make([]string, 0, 6*len(letters)+1)
		for _, l := range letters {
			edited, payload := "", ""
			switch {
			case l.Moved != nil:
				edited, payload = "moved", fieldList(l.Moved)
			case l.Payload != nil:
				edited, payload = "1", rueidis.BinaryString(*l.Payload)
			}
			args = append(args, l.Letter, string(l.When), edited, payload, l.Fields, l.To)
		}
		return redriveScript.integers(ctx, c, []string{k.Dead, k.Due, k.Payload, k.Meta, k.Wake, k.Stream, k.Policy,
			k.History}, append(args, k.Actor), len(letters),
			Durability{})
	})
	if err != nil {
		return nil, err
	}
	out := make([]Redriven, len(reply))
	for i, n := range reply {
		out[i] = Redriven(n)
	}
	return out, nil
}

// Look is the state of one queue, as a survey found it. If the schedule or the stream could not be read, Err is set,
// and the other fields hold all that could be read. If only other keys could not be read (tokens, windows, settings,
// recurrences), SideErr is set.
type Look struct {
	Wait    time.Duration // until the earliest message is due; negative = nothing is scheduled, or the queue is held
	Overdue time.Duration // how late the earliest message is
	Token   string        // ID of the wake token
	Busy    bool          // the stream holds entries, or a group was seen to hold some
	Turns   bool          // messages with an ordering key are in flight, or wait for their turn
	Untidy  bool          // orphans, dedup windows, notes of reclaims, leases, or cursors are left
	Orphans bool          // there are more payloads, or more metas, than members of the schedule
	Bodies  int64         // fields of payload and meta
	Recurs  bool          // there are recurrences, or plans of them
	Err     error
	SideErr error

	// Standing describes the entries and groups of the stream while no group holds an entry. As long as it stays the
	// same, nobody has read or added an entry, so there is nothing to do. It is empty if a group holds an entry, if
	// there are no entries, or if there were too many groups to look at.
	Standing string
}

var surveyScript = func() *script {
	s := load("survey", []string{"due", "payload", "meta", "stream", "wake", "seen", "policy", "calm", "recurring",
		"turns", "planned", "leases", "progress"}, []string{"held"}, nil)
	s.everyKey = true
	return s
}()

// MaxSurvey is how many queues one survey looks at.
const MaxSurvey = 250

// Survey looks at up to MaxSurvey queues in one round trip. held: if a stream has no entries, also look whether groups
// hold deleted entries. On a cluster the queues must share a slot, so give only one.
func Survey(ctx context.Context, c rueidis.Client, queues []Keys, held bool) ([]Look, error) {
	arg := "0"
	if held {
		arg = "1"
	}
	looks := make([]Look, 0, len(queues))
	for {
		before := len(looks)
		keys := make([]string, 0, 13*len(queues))
		for _, k := range queues[before:] {
			keys = append(keys, k.Due, k.Payload, k.Meta, k.Stream, k.Wake, k.Seen, k.Policy, k.Calm, k.Recurring, k.Turns,
				k.Planned, k.Leases, k.Progress)
		}
		reply, err := surveyScript.list(ctx, c, keys, []string{arg}, len(keys)/13*8)
		if err != nil {
			return nil, err
		}
		for row := range slices.Chunk(reply, 8) {
			if n, err := row[0].AsInt64(); err == nil && n == notReached {
				break
			}
			look, err := parseLook(row)
			if err != nil {
				return nil, surveyScript.unexpected(err)
			}
			looks = append(looks, look)
		}
		if len(looks) == len(queues) {
			return looks, nil
		}
		if len(looks) == before {
			return nil, surveyScript.unexpected(errors.New("nothing was looked at"))
		}
	}
}

var tokenID = regexp.MustCompile(`^\d+-\d+$`)

func parseLook(reply []rueidis.RedisMessage) (Look, error) {
	var n [8]int64
	for _, i := range []int{0, 1, 3, 4, 6, 7} {
		var err error
		if n[i], err = reply[i].AsInt64(); err != nil {
			return Look{}, err
		}
	}
	token, err := reply[2].ToString()
	if err != nil {
		return Look{}, err
	}
	standing, err := reply[5].ToString()
	if err != nil {
		return Look{}, err
	}
	look := Look{
		Wait: duration(n[0], time.Millisecond), Overdue: duration(n[1], time.Millisecond),
		Token: token, Busy: n[3]&1 == 1, Turns: n[3]&2 == 2, Untidy: n[4] > 0, Orphans: n[4] == 2,
		Bodies: n[6], Standing: standing,
		Recurs: n[7] > 0,
	}
	switch {
	case n[0] == -2:
		look.Token, look.Wait, look.Err = "0-0", -time.Millisecond, returnedError("survey", token)
	case !tokenID.MatchString(token):
		look.Token, look.SideErr = "0-0", returnedError("survey", token)
	}
	return look, nil
}

// Orphan is a field of a hash (payload or meta) whose message is not in the schedule.
type Orphan struct {
	Field  string
	Length int64 // of the value, in bytes: a value of another length is a new one; negative = not compared
}

// Watched is an orphan that was found before.
type Watched struct {
	Orphan
	Ripe bool // it has been an orphan for long enough, and is deleted if it still is an orphan
}

// Swept is the result of one SweepOrphans.
type Swept struct {
	Deleted int
	Cursor  string   // "0" = the scan is complete
	Left    []int64  // for each watched orphan, the length of its value; negative = it is no longer the same orphan
	Found   []Orphan // the orphans that the scan found
}

var orphansScript = load("orphans", []string{"due", "fields"}, []string{"cursor", "limit"},
	[]string{"field", "length", "ripe"})

// SweepOrphans checks watched fields of a hash (payload or meta), and deletes those that are ripe and still orphans.
// Then it scans about limit further fields, or 1 MiB.
func SweepOrphans(
	ctx context.Context, c rueidis.Client, due, hash, cursor string, limit int, watched []Watched,
) (Swept, error) {
	if cursor == "" {
		cursor = "0"
	}
	args := append(make([]string, 0, 2+3*len(watched)), cursor, strconv.Itoa(limit))
	for _, w := range watched {
		length, ripe := "", "0"
		if w.Length >= 0 {
			length = strconv.FormatInt(w.Length, 10)
		}
		if w.Ripe {
			ripe = "1"
		}
		args = append(args, w.Field, length, ripe)
	}
	reply, err := orphansScript.list(ctx, c, []string{due, hash}, args, 2+len(watched))
	if err != nil {
		return Swept{}, err
	}
	var s Swept
	deleted, err := reply[0].AsInt64()
	if err == nil {
		s.Deleted = int(deleted)
		s.Cursor, err = reply[1].ToString()
	}
	for i := 2; i < len(reply) && err == nil; i++ {
		if i < 2+len(watched) {
			var n int64
			n, err = reply[i].AsInt64()
			s.Left = append(s.Left, n)
			continue
		}
		var o Orphan
		if o.Field, err = reply[i].ToString(); err == nil && i+1 < len(reply) {
			o.Length, err = reply[i+1].AsInt64()
		}
		s.Found, i = append(s.Found, o), i+1
	}
	return s, orphansScript.unexpected(err)
}
