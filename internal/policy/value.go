package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Setting is a row of the table of settings. The zero value is no setting.
type Setting struct {
	Name       string   // the field in the policy hash, and in JSON
	Word       string   // the name in commands; in upper case, the end of the environment variable's name
	Low, High  int64    // limits of a Duration (in ms), of a Count, and of a Switch
	Words      []string // the values of a Word; the first one is the built-in value
	Meaning    string   // what the value means; for a Switch, what is true when it is on
	Zero       string   // what zero means, if zero has a meaning of its own
	WholeQueue bool     // only queues have the setting, not groups and not duestream:defaults
	Optional   bool     // zero counts as not set: JSON and duestream:defaults leave it out
	place
}

// Kind is the kind of a setting's values.
type Kind int

// Kinds of values. In the hash, a Switch is 0 or 1, and a value of no Delays and no Rate is 0.
const (
	Duration Kind = iota // whole milliseconds
	Count                // a whole number
	Switch               // on or off; a boolean in JSON
	Delays               // milliseconds, separated by commas: a text in JSON
	Rate                 // 500/s, 30/m or 1/h
	Word                 // one of Setting.Words
)

// Value is a value of a setting. Durations (in ms), counts and switches (0 or 1) use Number, the other kinds Text.
type Value struct {
	Number int64
	Text   string
}

// place has the functions that read and write a setting in a Policy (get, set) and in an Update (change, put).
type place struct {
	Kind   Kind
	get    func(*Policy) Value
	set    func(*Policy, Value)
	change func(*Update) (value Value, given bool)
	put    func(*Update, Value)
}

func placeOf[T any](
	kind Kind, value func(T) Value, typed func(Value) T, field func(*Policy) *T, change func(*Update) **T,
) place {
	return place{
		Kind: kind,
		get:  func(p *Policy) Value { return value(*field(p)) },
		set:  func(p *Policy, v Value) { *field(p) = typed(v) },
		change: func(u *Update) (Value, bool) {
			if given := *change(u); given != nil {
				return value(*given), true
			}
			return Value{}, false
		},
		put: func(u *Update, v Value) {
			t := typed(v)
			*change(u) = &t
		},
	}
}

func duration(field func(*Policy) *time.Duration, change func(*Update) **time.Duration) place {
	return placeOf(Duration,
		func(d time.Duration) Value { return Value{Number: d.Milliseconds()} },
		func(v Value) time.Duration { return time.Duration(v.Number) * time.Millisecond }, field, change)
}

func count(field func(*Policy) *int, change func(*Update) **int) place {
	return placeOf(Count,
		func(n int) Value { return Value{Number: int64(n)} }, func(v Value) int { return int(v.Number) }, field, change)
}

func onOff(field func(*Policy) *bool, change func(*Update) **bool) place {
	return placeOf(Switch, switched, func(v Value) bool { return v.Number == 1 }, field, change)
}

func text[T ~string](kind Kind, field func(*Policy) *T, change func(*Update) **T) place {
	toValue := func(s T) Value { return Value{Text: string(s)} }
	fromValue := func(v Value) T { return T(v.Text) }
	return placeOf(kind, toValue, fromValue, field, change)
}

func switched(on bool) Value {
	if on {
		return Value{Number: 1}
	}
	return Value{}
}

// Settings returns all settings, in the order in which they are shown.
func Settings() []Setting { return slices.Clone(settings) }

// Named returns a setting by its name in the hash.
func Named(name string) (s Setting, known bool) {
	i := slices.IndexFunc(settings, func(s Setting) bool { return s.Name == name })
	if i < 0 {
		return Setting{}, false
	}
	return settings[i], true
}

// Get returns the setting of a policy.
func (s Setting) Get(p Policy) Value { return s.get(&p) }

// Set sets the setting of a policy, unchecked: see Policy.Validate.
func (s Setting) Set(p *Policy, v Value) { s.set(p, v) }

// Put puts a value into an update, unchecked: see Update.Check.
func (s Setting) Put(u *Update, v Value) { s.put(u, v) }

// IsOff reports whether a value counts as not set.
func (s Setting) IsOff(v Value) bool { return s.Optional && v == Value{} }

// Default returns the built-in value in the form of the hash.
func (s Setting) Default() string {
	return s.stored(s.Get(Default()))
}

// Unit returns the unit of the values in the hash; empty for a plain number or a word.
func (s Setting) Unit() string {
	switch s.Kind {
	case Duration, Delays:
		return "ms"
	case Rate:
		return "per s, m or h"
	}
	return ""
}

// Limits returns the values that are accepted, in the form of the hash.
func (s Setting) Limits() string {
	switch s.Kind {
	case Delays:
		return fmt.Sprintf("0, or up to %d numbers from 1 to %d, with commas",
			lua.MaxDelays, lua.MaxDelay.Milliseconds())
	case Rate:
		return fmt.Sprintf("0, or 1 to %d with /s, /m or /h", lua.MaxRate)
	case Word:
		return strings.Join(s.Words, ", ")
	}
	return fmt.Sprintf("%d to %d", s.Low, s.High)
}

// check returns an error that wraps lua.ErrInvalid if a value is outside the limits.
func (s Setting) check(v Value) error {
	switch s.Kind {
	case Delays:
		return lua.CheckDelays(lua.Delays(v.Text))
	case Rate:
		return lua.CheckRate(lua.Rate(v.Text))
	case Word:
		if v.Text == "" || slices.Contains(s.Words, v.Text) {
			return nil
		}
		return lua.Invalid(s.Name, v.Text, "must be one of %s", strings.Join(s.Words, ", "))
	}
	if v.Number < s.Low || v.Number > s.High {
		return lua.Invalid(s.Name, s.shown(v), "must be between %s and %s", s.shown(Value{Number: s.Low}),
			s.shown(Value{Number: s.High}))
	}
	return nil
}

// shown returns a value as errors show it.
func (s Setting) shown(v Value) string {
	switch s.Kind {
	case Duration:
		return (time.Duration(v.Number) * time.Millisecond).String()
	case Count:
		return strconv.FormatInt(v.Number, 10)
	case Switch:
		return strconv.FormatBool(v.Number == 1)
	}
	return v.Text
}

// none is the form of no delays, or of no rate limit, in a hash.
const none = "0"

// stored returns a value in the form of the hash.
func (s Setting) stored(v Value) string {
	switch s.Kind {
	case Delays:
		return cmp.Or(v.Text, none)
	case Rate:
		return cmp.Or(string(lua.Rate(v.Text).Normal()), none)
	case Word:
		return cmp.Or(v.Text, s.Words[0])
	}
	return strconv.FormatInt(v.Number, 10)
}

// parse reads a value in the form of the hash.
func (s Setting) parse(stored string) (Value, error) {
	switch s.Kind {
	case Delays:
		list := lua.Delays(stored)
		if list == none {
			return Value{}, nil
		}
		if len(list.List()) == 0 {
			return Value{}, cmp.Or(lua.CheckDelays(list),
				lua.Invalid(s.Name, stored, "must be a list of delays in ms, or 0"))
		}
		return Value{Text: stored}, nil
	case Rate:
		if stored == none {
			return Value{}, nil
		}
		return Value{Text: string(lua.Rate(stored).Normal())}, lua.CheckRate(lua.Rate(stored))
	case Word:
		if stored == s.Words[0] { // the built-in word is the zero value
			return Value{}, nil
		}
		if !slices.Contains(s.Words, stored) {
			return Value{}, lua.Invalid(s.Name, stored, "must be one of %s", strings.Join(s.Words, ", "))
		}
		return Value{Text: stored}, nil
	}
	n, err := strconv.ParseInt(stored, 10, 64)
	if err != nil || n < s.Low || n > s.High {
		kind := "a number"
		if s.Kind == Duration {
			kind = "a number of ms"
		}
		return Value{}, lua.Invalid(s.Name, stored, "must be %s between %d and %d", kind, s.Low, s.High)
	}
	return Value{Number: n}, nil
}

// JSON returns a value as it stands in JSON: a whole number, a boolean or a text.
func (s Setting) JSON(v Value) any {
	switch s.Kind {
	case Duration, Count:
		return v.Number
	case Switch:
		return v.Number == 1
	}
	return v.Text
}

// ParseJSON reads the form of JSON. It does not check the limits.
func (s Setting) ParseJSON(raw []byte) (v Value, err error) {
	switch s.Kind {
	case Duration:
		if err = json.Unmarshal(raw, &v.Number); err == nil && (v.Number < -maxMillis || v.Number > maxMillis) {
			err = lua.Invalid(s.Name, string(raw), "must be a number of ms")
		}
	case Count:
		err = json.Unmarshal(raw, &v.Number)
	case Switch:
		var on bool
		err = json.Unmarshal(raw, &on)
		v = switched(on)
	default:
		err = json.Unmarshal(raw, &v.Text)
	}
	return v, err
}

// maxMillis is the longest time.Duration in ms.
const maxMillis = math.MaxInt64 / int64(time.Millisecond)

// MarshalJSON returns the settings by their names in the policy hash, without optional ones that are not set.
func (p Policy) MarshalJSON() ([]byte, error) {
	var object view.Object
	for _, s := range settings {
		if value := s.get(&p); !s.IsOff(value) {
			object = append(object, view.Member{Name: s.Name, Value: s.JSON(value)})
		}
	}
	return object.MarshalJSON()
}

// UnmarshalJSON parses the form of MarshalJSON.
func (p *Policy) UnmarshalJSON(raw []byte) error {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(raw, &given); err != nil {
		return err
	}
	*p = Policy{}
	for _, s := range settings {
		one, isGiven := given[s.Name]
		if !isGiven {
			continue
		}
		value, err := s.ParseJSON(one)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		s.set(p, value)
	}
	return nil
}
