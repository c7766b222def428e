package lua

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// MaxDelays is how many delays a list may have.
const MaxDelays = 100

// Delays is a list of delays in ms, as policies and messages have it: `60000,180000,300000`. The n-th is the delay
// after the n-th failed attempt; the last one is the delay after all further attempts. The empty text is the empty
// list.
type Delays string

// NewDelays returns the list of these delays. It does not check them: see CheckDelays.
func NewDelays(all ...time.Duration) Delays {
	var b strings.Builder
	for i, d := range all {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(millis(d))
	}
	return Delays(b.String())
}

// List returns the delays; nil when there are none, or the list does not parse.
func (d Delays) List() []time.Duration {
	list, err := d.parse()
	if err != nil {
		return nil
	}
	return list
}

// String shows the delays as people write them: 1m0s,3m0s.
func (d Delays) String() string {
	var words []string
	for _, one := range d.List() {
		words = append(words, one.String())
	}
	return strings.Join(words, ",")
}

func (d Delays) parse() (list []time.Duration, err error) {
	if d == "" {
		return nil, nil
	}
	for word := range strings.SplitSeq(string(d), ",") {
		ms, err := strconv.ParseInt(word, 10, 64)
		if err != nil || word[0] == '+' || ms < 1 || ms > MaxDelay.Milliseconds() || len(list) == MaxDelays {
			return nil, Invalid(FieldRetryDelays, string(d), "must be 1 to %d numbers of ms between 1 and %d, with commas",
				MaxDelays, MaxDelay.Milliseconds())
		}
		list = append(list, time.Duration(ms)*time.Millisecond)
	}
	return list, nil
}

// CheckDelays refuses lists of more than 100 delays, and delays below 1 ms or above ten years. The empty list passes.
func CheckDelays(d Delays) error {
	_, err := d.parse()
	return err
}

// Retries are a message's own retry settings. A zero value means that the message does not have the setting.
type Retries struct {
	Delays                 Delays
	For                    time.Duration
	MaxSnoozes, MaxCrashes int
	HandlerTimeout         time.Duration
	KeepResult             time.Duration // how long the result is kept
}

// Fields returns the settings that the message has, as fields of the message.
func (r Retries) Fields() (all []FieldValue) {
	if r.Delays != "" {
		all = append(all, FieldValue{Field: FieldRetryDelays, Value: string(r.Delays)})
	}
	if r.For != 0 {
		all = append(all, FieldValue{Field: FieldRetryFor, Value: millis(r.For)})
	}
	if r.MaxSnoozes != 0 {
		all = append(all, FieldValue{Field: FieldMaxSnoozes, Value: strconv.Itoa(r.MaxSnoozes)})
	}
	if r.MaxCrashes != 0 {
		all = append(all, FieldValue{Field: FieldMaxCrashes, Value: strconv.Itoa(r.MaxCrashes)})
	}
	if r.HandlerTimeout != 0 {
		all = append(all, FieldValue{Field: FieldHandlerTimeout, Value: millis(r.HandlerTimeout)})
	}
	if r.KeepResult != 0 {
		all = append(all, FieldValue{Field: FieldResult, Value: millis(r.KeepResult)})
	}
	return all
}

// Check refuses values beyond the limits.
func (r Retries) Check() error {
	errs := []error{CheckDelays(r.Delays), CheckDelay("retry_for", r.For), CheckDelay("handler_timeout", r.HandlerTimeout)}
	if r.KeepResult != 0 {
		errs = append(errs, CheckResultAge(r.KeepResult))
	}
	for _, limit := range []struct {
		name string
		n    int
	}{{FieldMaxSnoozes, r.MaxSnoozes}, {FieldMaxCrashes, r.MaxCrashes}} {
		if limit.n < 0 || limit.n > MaxAttemptsLimit {
			errs = append(errs, Invalid(limit.name, strconv.Itoa(limit.n), "must be between 0 and %d", MaxAttemptsLimit))
		}
	}
	return errors.Join(errs...)
}
