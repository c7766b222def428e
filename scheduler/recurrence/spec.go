package recurrence

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

// Missed is the policy for occurrences that nobody planned in time, because no bridge was alive.
type Missed string

// Values of Missed.
const (
	MissedOnce Missed = "once" // the last one is made up for: the default
	MissedSkip Missed = "skip" // none is made up for
	MissedAll  Missed = "all"  // the last MissedLimit are made up for
)

// Overlap is the policy for an occurrence whose predecessor is not done.
type Overlap string

// Values of Overlap.
const (
	OverlapAllow Overlap = "allow" // it is planned all the same: the default
	OverlapSkip  Overlap = "skip"  // it is left out
)

// Limits of a Spec.
const (
	MaxOwnerBytes   = 128
	MaxPayloadBytes = 1 << 20
	MinEvery        = time.Second
	MaxJitter       = 24 * time.Hour
	MaxCount        = 1_000_000_000
	MissedLimit     = 100
	// MissedAfter is the lateness from which an occurrence counts as missed. Before that it is planned late.
	MissedAfter = 10 * time.Second
)

// Spec is a recurrence: the message to schedule, and the times.
type Spec struct {
	Name, Queue string
	Payload     []byte
	Headers     map[string]string

	Cron  string        // five fields, six with seconds in front, or @daily and the like
	Zone  string        // of Cron, like Europe/Paris; "" = UTC
	Every time.Duration // instead of Cron: whole milliseconds, from a second to ten years
	Phase time.Duration // less than Every: occurrences are at 1970-01-01T00:00:00Z + Phase + n × Every

	Start, End time.Time     // no occurrence is before Start, or after End; zero = no bound
	Count      int           // greatest number of occurrences; zero = no bound
	Jitter     time.Duration // greatest extra delay of a message, by a hash of its ID
	Missed     Missed
	Overlap    Overlap
	Paused     bool
	Owner      string // label of the program that keeps it; planner.Apply changes only those with its label
}

// WithDefaults returns the spec with defaults for the fields that it leaves out.
func (s Spec) WithDefaults() Spec {
	if s.Missed == "" {
		s.Missed = MissedOnce
	}
	if s.Overlap == "" {
		s.Overlap = OverlapAllow
	}
	if s.Cron != "" && s.Zone == "" {
		s.Zone = "UTC"
	}
	return s
}

// Schedule is a checked Spec that can compute its occurrences.
type Schedule struct {
	Spec
	cron cron
	zone *time.Location
}

// Compile checks a spec, and returns an ErrInvalid that names every invalid field.
func (s Spec) Compile() (*Schedule, error) {
	s = s.WithDefaults()
	c := &Schedule{Spec: s, zone: time.UTC}
	errs := []error{lua.CheckRecurrence(s.Name), lua.CheckQueue(s.Queue), lua.CheckHeaders(s.Headers)}
	bad := func(field, value, rule string, args ...any) {
		errs = append(errs, lua.Invalid(field, value, rule, args...))
	}
	switch {
	case s.Cron != "" && s.Every != 0:
		bad("every", s.Every.String(), "must not be given beside cron")
	case s.Cron == "" && s.Every == 0:
		bad("cron", "", "must be given, or every")
	case s.Cron != "":
		parsed, err := parseCron(s.Cron)
		errs, c.cron = append(errs, err), parsed
		if s.Phase != 0 {
			bad("phase", s.Phase.String(), "must not be given beside cron")
		}
	default:
		if s.Every < MinEvery || s.Every > lua.MaxDelay || s.Every%time.Millisecond != 0 {
			bad("every", s.Every.String(), "must be whole milliseconds, between %s and 3650d", MinEvery)
		}
		if s.Phase < 0 || s.Phase >= max(s.Every, 1) || s.Phase%time.Millisecond != 0 {
			bad("phase", s.Phase.String(), "must be whole milliseconds, from 0 to less than every")
		}
		if s.Zone != "" {
			bad("zone", s.Zone, "must not be given beside every")
		}
	}
	if s.Zone != "" {
		zone, err := time.LoadLocation(s.Zone)
		if err != nil || strings.EqualFold(s.Zone, "local") {
			bad("zone", s.Zone, "must be a time zone like Europe/Paris or UTC")
			zone = time.UTC
		}
		c.zone = zone
	}
	errs = append(errs, s.checkBounds(), s.checkRest())
	return c, errors.Join(errs...)
}

func (s Spec) checkBounds() error {
	var errs []error
	if !s.Start.IsZero() {
		errs = append(errs, lua.CheckTime("start", s.Start))
	}
	if !s.End.IsZero() {
		errs = append(errs, lua.CheckTime("end", s.End))
		if !s.End.After(s.Start) {
			errs = append(errs, lua.Invalid("end", s.End.Format(time.RFC3339), "must be after start"))
		}
	}
	if s.Count < 0 || s.Count > MaxCount {
		errs = append(errs, lua.Invalid("count", strconv.Itoa(s.Count), "must be between 0 (no bound) and %d", MaxCount))
	}
	if s.Jitter < 0 || s.Jitter > MaxJitter || s.Jitter%time.Millisecond != 0 {
		errs = append(errs, lua.Invalid("jitter", s.Jitter.String(), "must be whole milliseconds, between 0 and %s", MaxJitter))
	}
	return errors.Join(errs...)
}

func (s Spec) checkRest() error {
	var errs []error
	if s.Missed != MissedOnce && s.Missed != MissedSkip && s.Missed != MissedAll {
		errs = append(errs, lua.Invalid("missed", string(s.Missed), "must be skip, once or all"))
	}
	if s.Overlap != OverlapAllow && s.Overlap != OverlapSkip {
		errs = append(errs, lua.Invalid("overlap", string(s.Overlap), "must be allow or skip"))
	}
	if s.Owner != "" && (len(s.Owner) > MaxOwnerBytes || lua.CheckID(s.Owner) != nil) {
		errs = append(errs, lua.Invalid("owner", s.Owner, "must be at most %d bytes of UTF-8 without control characters",
			MaxOwnerBytes))
	}
	if len(s.Payload) > MaxPayloadBytes {
		errs = append(errs, &lua.InvalidError{Field: "payload", Value: fmt.Sprintf("of %d bytes", len(s.Payload)),
			Rule: fmt.Sprintf("must be at most %d bytes", MaxPayloadBytes)})
	}
	return errors.Join(errs...)
}

// Equal reports whether two specs are the same.
func (s Spec) Equal(o Spec) bool {
	s, o = s.WithDefaults(), o.WithDefaults()
	return s.Name == o.Name && s.Queue == o.Queue && string(s.Payload) == string(o.Payload) && maps.Equal(s.Headers, o.Headers) &&
		s.Cron == o.Cron && s.Zone == o.Zone && s.Every == o.Every && s.Phase == o.Phase && s.Start.Equal(o.Start) &&
		s.End.Equal(o.End) && s.Count == o.Count && s.Jitter == o.Jitter && s.Missed == o.Missed && s.Overlap == o.Overlap &&
		s.Paused == o.Paused && s.Owner == o.Owner
}

// Location returns the zone in which occurrences are shown.
func (s *Schedule) Location() *time.Location { return s.zone }

// Next returns the first occurrence after a point in time, or false if there is none. It ignores Count.
func (s *Schedule) Next(after time.Time) (time.Time, bool) {
	if !s.Start.IsZero() && after.Before(s.Start) {
		after = s.Start.Add(-time.Millisecond)
	}
	next, ok := s.next(after)
	if !ok || !s.End.IsZero() && next.After(s.End) || next.UnixMilli() > 1e13 { // 1e13 ms: the latest due time, in 2286
		return time.Time{}, false
	}
	return next, true
}

func (s *Schedule) next(after time.Time) (time.Time, bool) {
	if s.Every > 0 {
		every, phase, ms := s.Every.Milliseconds(), s.Phase.Milliseconds(), after.UnixMilli()
		n := (ms - phase) / every // the number of the last occurrence that is not after ms
		if ms < phase && (ms-phase)%every != 0 {
			n-- // the division rounds towards zero, so round down here
		}
		return time.UnixMilli(phase + (n+1)*every).In(s.zone), true
	}
	next := s.cron.nextByClock
	if s.cron.allHours() {
		next = s.cron.nextByElapsedTime
	}
	at, ok := next(after, s.zone)
	return at.In(s.zone), ok
}

// LastUntil returns the last occurrence in (after, until], or false if there is none. It costs some forty calls of
// Next.
func (s *Schedule) LastUntil(after, until time.Time) (time.Time, bool) {
	occursAfter := func(ms int64) bool { // whether an occurrence is in (ms, until]
		next, ok := s.Next(time.UnixMilli(ms))
		return ok && !next.After(until)
	}
	from, to := after.UnixMilli(), until.UnixMilli()
	if from >= to || !occursAfter(from) {
		return time.Time{}, false
	}
	for to-from > 1 { // invariant: occursAfter(from) and not occursAfter(to)
		if middle := from + (to-from)/2; occursAfter(middle) {
			from = middle
		} else {
			to = middle
		}
	}
	return time.UnixMilli(to).In(s.zone), true
}

// ID returns the message ID of an occurrence.
func (s Spec) ID(at time.Time) string { return s.Name + "@" + strconv.FormatInt(at.UnixMilli(), 10) }

// Due returns the due time of an occurrence's message: the occurrence, plus with Jitter a delay that is a hash of its
// ID.
func (s Spec) Due(at time.Time) time.Time {
	if s.Jitter <= 0 {
		return at
	}
	h := fnv.New64a()
	h.Write([]byte(s.ID(at)))
	return at.Add(time.Duration(h.Sum64()%uint64(s.Jitter.Milliseconds()+1)) * time.Millisecond)
}
