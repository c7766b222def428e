package recurrence

import "time"

// This file searches for the instants that match an expression in a time zone.

// allHours reports whether the expression matches every hour of the day.
func (c cron) allHours() bool { return c.hours == 1<<24-1 }

// nextByElapsedTime returns the first instant after a point in time at which the clocks of the zone match the
// expression. It searches from one change of the zone's offset to the next, because between two changes local time is
// as regular as UTC.
func (c cron) nextByElapsedTime(after time.Time, zone *time.Location) (time.Time, bool) {
	local := after.In(zone)
	wall, limit := clock(local), after.AddDate(searchYears, 0, 0)
	for !local.After(limit) {
		_, offset := local.Zone()
		_, end := local.ZoneBounds()
		next, ok := c.next(wall)
		if !ok {
			return time.Time{}, false
		}
		if at := time.Unix(next.Unix()-int64(offset), 0); end.IsZero() || at.Before(end) {
			return at, true
		}
		local = end.In(zone)
		wall = clock(local).Add(-time.Second) // next searches after wall, and the first second of the new offset counts
	}
	return time.Time{}, false
}

// nextByClock returns the first instant after a point in time that the policy assigns to a match of the expression.
func (c cron) nextByClock(after time.Time, zone *time.Location) (time.Time, bool) {
	wall := clock(after.In(zone))
	for limit := wall.AddDate(searchYears, 0, 0); ; {
		next, ok := c.next(wall)
		if !ok || next.After(limit) {
			return time.Time{}, false
		}
		at, resume := resolve(next, zone)
		if at.After(after) {
			return at, true
		}
		wall = next
		if resume.After(next) { // next lies in a gap
			wall = resume.Add(-time.Second)
		}
	}
}

// searchYears bounds the search for an occurrence: 29 February skips a century that is no leap year.
const searchYears = 9

// next returns the first match after wall. Both are clock readings, represented as UTC.
func (c cron) next(wall time.Time) (time.Time, bool) {
	t := wall.Truncate(time.Second).Add(time.Second)
	for last := t.Year() + searchYears; t.Year() <= last; {
		switch {
		case c.months>>t.Month()&1 == 0:
			t = time.Date(t.Year(), t.Month()+1, 1, 0, 0, 0, 0, time.UTC)
		case !c.isDay(t):
			t = time.Date(t.Year(), t.Month(), t.Day()+1, 0, 0, 0, 0, time.UTC)
		case c.hours>>t.Hour()&1 == 0:
			t = t.Truncate(time.Hour).Add(time.Hour)
		case c.minutes>>t.Minute()&1 == 0:
			t = t.Truncate(time.Minute).Add(time.Minute)
		case c.seconds>>t.Second()&1 == 0:
			t = t.Add(time.Second)
		default:
			return t, true
		}
	}
	return time.Time{}, false
}

func (c cron) isDay(t time.Time) bool {
	day, weekday := c.days>>t.Day()&1 == 1, c.weekdays>>t.Weekday()&1 == 1
	if c.anyDay || c.anyWeekday {
		return day && weekday
	}
	return day || weekday
}

// clock returns the reading of a clock in the zone of t, represented as UTC: a scale without gaps and repetitions.
func clock(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
}

// resolve returns the instant that the policy assigns to a clock reading. If the reading does not exist, because it
// lies in a gap, resume is the reading from which the search continues; otherwise resume is wall. at is zero if the
// whole date does not exist.
func resolve(wall time.Time, zone *time.Location) (at, resume time.Time) {
	t := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), wall.Second(), 0, zone)
	start, end := t.ZoneBounds()
	shown := clock(t)
	// If wall lies in a gap, time.Date has chosen an instant before or after the change of the clocks.
	if !shown.Equal(wall) {
		change := end
		if shown.After(wall) {
			change = start
		}
		change = change.In(zone)
		// from is the last reading before the gap, and to is the first reading after it.
		from, to := clock(change.Add(-time.Second)), clock(change)
		midnight := wall.Truncate(24 * time.Hour)
		if tomorrow := midnight.AddDate(0, 0, 1); from.Before(midnight) && !to.Before(tomorrow) {
			return time.Time{}, tomorrow
		}
		return change, to
	}
	if start.IsZero() {
		return t, wall
	}
	// If the clocks were set back at start, the same reading may exist before start, too. The first one counts.
	_, before := start.Add(-time.Second).In(zone).Zone()
	_, now := t.Zone()
	if first := t.Add(time.Duration(now-before) * time.Second); first.Before(start) && clock(first.In(zone)).Equal(wall) {
		return first, wall
	}
	return t, wall
}
