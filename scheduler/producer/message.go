package producer

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Message is a message to schedule. The zero value is an empty message that is ready at once.
type Message struct {
	// ID names the message; empty = a unique, time-ordered one is generated. While a message with this ID is scheduled,
	// another one is refused with ErrDuplicate. At most 256 bytes of UTF-8 without control characters.
	ID string
	// Payload is any bytes, at most 16 MiB. It is copied.
	Payload []byte
	// Headers are UTF-8: at most 64, with 32 KiB of names and values together.
	Headers map[string]string
	// Delay is the time until the message is due, counted from the moment the server takes it; at most ten years. Set
	// either Delay or At.
	Delay time.Duration
	// At is the due time by the server's clock; a past one means at once. Fractions of a millisecond are rounded up.
	At time.Time
	// Spread delays the message by a further 0 to Spread, chosen by hashing its ID. So the due times of many messages
	// for one instant are spread evenly, and a message that is scheduled again gets the same due time. Whole
	// milliseconds; at most ten years, including Delay.
	Spread time.Duration
	// MaxAttempts is the greatest number of deliveries to a group. Zero = the setting of the queue's policy.
	MaxAttempts int
	// RetryDelays are the delays after failed attempts; the last one applies to all further attempts. Empty = the
	// setting of the queue's policy. See NewDelays.
	RetryDelays lua.Delays
	// RetryFor is the time from the due time within which retries may be due. Zero = the setting of the queue's policy;
	// at most ten years.
	RetryFor time.Duration
	// MaxSnoozes is how often a group may snooze the message. MaxCrashes is how often a delivery to a group may be
	// abandoned; if it is set, an abandoned delivery does not count as a failed attempt. Zero = the setting of the
	// queue's policy. At most 1,000,000.
	MaxSnoozes, MaxCrashes int
	// HandlerTimeout is the time limit of the message's handler. Zero = the setting of the queue's policy, or else the
	// worker's own setting. At most ten years.
	HandlerTimeout time.Duration
	// KeepResult is how long the result of each group's handler is kept for a caller who waits: from 1 s to a week. Zero =
	// no result is kept.
	KeepResult time.Duration
	// Expires is the time, by the server's clock, from which the message is dead-lettered instead of delivered; zero =
	// never. It must be after At.
	Expires time.Time
	// ExpiresIn sets Expires as a duration, counted from the call by the server's clock. It must be longer than Delay
	// and Spread together; at most ten years. Zero = never. Set either Expires or ExpiresIn.
	ExpiresIn time.Duration
	expires   time.Time // Expires computed from ExpiresIn
	// Dedup is the time from the moment the server takes the message in which another message with its ID is refused,
	// even after this message has left the schedule; at most ten years. Zero = another message with its ID is only
	// refused while this one is scheduled. Dedup needs an ID.
	Dedup time.Duration
	// Key is the ordering key: messages of a queue with the same ordering key are delivered one at a time, by due time.
	// The next message becomes ready when the one before is finished: every group has acknowledged it, or it was
	// cancelled or dead-lettered. Empty = no ordering. At most 256 bytes of UTF-8 without control characters.
	Key string
	// Replace is the condition under which the message replaces the scheduled message with its ID, that is its payload,
	// headers and due time. "replace": always. "later" or "earlier": only if the new due time is later or earlier.
	// Otherwise, and if Replace is empty, the new message is refused with ErrDuplicate. Replace needs an ID, and no
	// Dedup.
	Replace lua.Dedup

	faults []error // of options with values that the fields cannot hold; see Refuse
}

// Refuse makes the message invalid: sending it fails with this error and ErrInvalid. Options call it for a value that
// stands for "not set" in the message's field, such as an empty ID.
func (m *Message) Refuse(field, value, rule string) {
	m.faults = append(m.faults, lua.Invalid(field, value, "%s", rule))
}

// Refused returns the faults that options gave to Refuse, or nil.
func (m *Message) Refused() error { return errors.Join(m.faults...) }

// Check returns the error with which Schedule would refuse the message before it asks Redis, or nil.
func (m *Message) Check() error {
	_, err := m.checked()
	return err
}

// checked checks the message, and returns its due time.
func (m *Message) checked() (lua.When, error) {
	when, err := dueWhen(m.Delay, m.At)
	if err == nil {
		err = m.check()
	}
	return when, err
}

// Receipt is the outcome of a stored message.
type Receipt struct {
	ID  string
	Due time.Time // by the server's clock; the message is never delivered before it
	// Ready: the message was due and went straight into the stream. Ready may be false although this happened, if a
	// reply was lost and the call was repeated.
	Ready bool
	// Replaced: the message replaced another one. Replaced may be false although this happened, if the message was
	// ready, or if a reply was lost and the call was repeated.
	Replaced bool
}

// Result is the outcome of one message of a batch. The message was stored if Err is nil, or if Err is lua.ErrNotDurable
// and not also ErrDuplicate. If Err is ErrUncertain, the message may have been stored. With any other error it was not
// stored.
type Result struct {
	Receipt
	Err error
}

// payloadCopies is one buffer with copies of the payloads of a call. The copies allow the caller to change its own
// slices while the messages are in flight.
type payloadCopies []byte

// newPayloadCopies returns a buffer with room for the payloads of the messages. Payloads that are too large to be
// accepted get no room.
func newPayloadCopies(ms []Message) *payloadCopies {
	n := 0
	for i := range ms {
		if len(ms[i].Payload) <= lua.MaxPayloadBytes {
			n += len(ms[i].Payload)
		}
	}
	c := make(payloadCopies, 0, n)
	return &c
}

// add copies a payload into the buffer, and returns the copy.
func (c *payloadCopies) add(payload []byte) []byte {
	from := len(*c)
	*c = append(*c, payload...)
	return (*c)[from:len(*c):len(*c)]
}

// item checks a message and converts it to the form of the protocol. The ID stays empty if the message has none.
func (m *Message) item(c *payloadCopies) (lua.Item, error) {
	when, err := m.checked()
	if err != nil {
		return lua.Item{}, err
	}
	item := lua.Item{
		ID: m.ID, When: when, Payload: c.add(m.Payload),
		Meta: lua.EncodeMeta(m.Headers, m.MaxAttempts, m.expiry(), m.fields()...),
	}
	switch {
	case m.Replace != "":
		item.Dedup = m.Replace
	case m.Dedup > 0:
		item.Dedup = lua.Window(m.Dedup)
	case m.ID != "":
		item.Dedup = lua.Refuse
	}
	return item, nil
}

// expiry returns the time from which the message is dead-lettered, set by Expires or ExpiresIn; zero = never.
func (m *Message) expiry() time.Time {
	if m.Expires.IsZero() {
		return m.expires
	}
	return m.Expires
}

// checkExpiresIn returns an error for values that are wrong at any time of the server's clock.
func (m *Message) checkExpiresIn() error {
	switch latestDue := m.Delay + m.Spread; {
	case m.ExpiresIn == 0:
		return nil
	case !m.Expires.IsZero():
		return lua.Invalid("expires in", m.ExpiresIn.String(), "must be zero when a point in time is given")
	case m.ExpiresIn > 0 && m.At.IsZero() && m.ExpiresIn <= latestDue:
		return lua.Invalid("expires in", m.ExpiresIn.String(),
			"must be after the due time, which is in %s at the latest", latestDue)
	}
	return lua.CheckDelay("expires in", m.ExpiresIn)
}

// needsServerTime reports whether the message has a valid ExpiresIn, which counts from the server's time.
func needsServerTime(m Message) bool { return m.ExpiresIn != 0 && m.checkExpiresIn() == nil }

// withExpiry returns the messages with expiry times computed from ExpiresIn. It asks the clock of the server that holds
// the queue.
func (p *Producer) withExpiry(ctx context.Context, queue string, ms []Message) ([]Message, error) {
	var now time.Time
	err := p.repeatIdempotent(ctx, time.Now(), func(ctx context.Context) (err error) {
		now, err = view.ServerTimeOf(ctx, p.cfg.Client, p.keys(queue).Due)
		return err
	})
	if err != nil {
		return nil, err
	}
	ms = slices.Clone(ms)
	for i := range ms {
		if m := &ms[i]; m.ExpiresIn != 0 {
			m.expires = now.Add(m.ExpiresIn)
		}
	}
	return ms, nil
}

// fields returns the fields of the message's meta besides headers, attempts and expiry.
func (m *Message) fields() []lua.FieldValue {
	all := m.retries().Fields()
	if m.Key != "" {
		all = append(all, lua.FieldValue{Field: lua.FieldKey, Value: m.Key})
	}
	return all
}

// place returns the text that decides the message's partition: the ordering key, or else the ID.
func (m *Message) place() string { return cmp.Or(m.Key, m.ID) }

// mayReplace reports whether the message may replace a scheduled message with the due time due. now is the server's
// time. Both are Unix ms.
func (m *Message) mayReplace(due, now int64) bool {
	when, _ := dueWhen(m.Delay, m.At)
	if m.Spread > 0 {
		when = when.Later(lua.SpreadOf(m.ID, m.Spread))
	}
	switch at := when.Unix(now); m.Replace {
	case lua.ReplaceLater:
		return at > due
	case lua.ReplaceEarlier:
		return at < due
	}
	return m.Replace == lua.Replace
}

func (m *Message) retries() lua.Retries {
	return lua.Retries{Delays: m.RetryDelays, For: m.RetryFor, MaxSnoozes: m.MaxSnoozes, MaxCrashes: m.MaxCrashes,
		HandlerTimeout: m.HandlerTimeout, KeepResult: m.KeepResult}
}

func (m *Message) check() error {
	if err := m.Refused(); err != nil {
		return err
	}
	if m.ID != "" {
		if err := lua.CheckID(m.ID); err != nil {
			return err
		}
	}
	if m.Key != "" {
		if err := lua.CheckKey(m.Key); err != nil {
			return err
		}
	}
	if err := lua.CheckPayload(m.Payload); err != nil {
		return err
	}
	if err := lua.CheckHeaders(m.Headers); err != nil {
		return err
	}
	if m.MaxAttempts != 0 {
		if err := lua.CheckMaxAttempts(m.MaxAttempts); err != nil {
			return err
		}
	}
	if err := m.checkSpread(); err != nil {
		return err
	}
	if err := m.retries().Check(); err != nil {
		return err
	}
	if err := m.checkExpiresIn(); err != nil {
		return err
	}
	if expires := m.expiry(); !expires.IsZero() {
		if err := lua.CheckTime("expires", expires); err != nil {
			return err
		}
		if last := m.At.Add(m.Spread); !m.At.IsZero() && !expires.After(last) {
			return lua.Invalid("expires", expires.UTC().Format(time.RFC3339), "must be after the due time %s",
				last.UTC().Format(time.RFC3339))
		}
	}
	if m.Dedup != 0 && m.ID == "" {
		return lua.Invalid("dedup", m.Dedup.String(), "needs an ID")
	}
	switch m.Replace {
	case "":
	case lua.Replace, lua.ReplaceLater, lua.ReplaceEarlier:
		if m.ID == "" || m.Dedup != 0 {
			return lua.Invalid("replace", string(m.Replace), "needs an ID, and no dedup window")
		}
	default:
		return lua.Invalid("replace", string(m.Replace), "must be replace, later or earlier")
	}
	return lua.CheckDelay("dedup", m.Dedup)
}

func (m *Message) checkSpread() error {
	switch {
	case m.Spread == 0:
		return nil
	case m.Spread < 0 || m.Spread > lua.MaxDelay:
		return lua.CheckDelay("spread", m.Spread)
	case m.Delay+m.Spread > lua.MaxDelay:
		return lua.CheckDelay("delay and spread", m.Delay+m.Spread)
	case !m.At.IsZero():
		return lua.CheckTime("spread", m.At.Add(m.Spread))
	}
	return nil
}

// dueWhen checks a delay or a point in time, of which one may be set, and converts it to the form of the protocol.
func dueWhen(delay time.Duration, at time.Time) (lua.When, error) {
	if at.IsZero() {
		return lua.After(delay), lua.CheckDelay("delay", delay)
	}
	if delay != 0 {
		return "", lua.Invalid("delay", delay.String(), "must be zero when a point in time is given")
	}
	return lua.At(at), lua.CheckTime("at", at)
}

// itemSize returns about how many bytes an item takes in a script call.
func itemSize(item *lua.Item) int { return len(item.ID) + len(item.Payload) + len(item.Meta) + 64 }
