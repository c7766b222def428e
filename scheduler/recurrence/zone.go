package recurrence

import "time"

// clock returns the reading of a clock in the zone of t, represented as UTC: a scale without gaps and repetitions.
func clock(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
}

// nextPassing returns the first instant after a point in time at which the clocks of the zone match the expression. It
// goes from one change of the offset to the next; between two of them local time is as regular as UTC.
func (c cron) nextPassing(after time.Time, zone *time.Location) (time.Time, bool) {
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
		wall = clock(local).Add(-time.Second)
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
		at, behind := resolve(next, zone)
		if at.After(after) {
			return at, true
		}
		wall = next
		if behind.After(next) {
			wall = behind.Add(-time.Second)
		}
	}
}

// resolve returns the instant that the policy assigns to a clock reading, which may not exist. In a gap, behind is the
// reading from which the search continues. at is zero for a date that does not exist.
func resolve(wall time.Time, zone *time.Location) (at, behind time.Time) {
	t := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), wall.Second(), 0, zone)
	start, end := t.ZoneBounds()
	shown := clock(t)
	if !shown.Equal(wall) {
		gap := end
		if shown.After(wall) {
			gap = start
		}
		gap = gap.In(zone)
		from, to := clock(gap.Add(-time.Second)), clock(gap)
		midnight := wall.Truncate(24 * time.Hour)
		if tomorrow := midnight.AddDate(0, 0, 1); from.Before(midnight) && !to.Before(tomorrow) {
			return time.Time{}, tomorrow
		}
		return gap, to
	}
	if start.IsZero() {
		return t, wall
	}
	_, before := start.Add(-time.Second).In(zone).Zone()
	_, now := t.Zone()
	if first := t.Add(time.Duration(now-before) * time.Second); first.Before(start) && clock(first.In(zone)).Equal(wall) {
		return first, wall
	}
	return t, wall
}
