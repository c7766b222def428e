package recurrence

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// This file says in words when a recurrence recurs.

// Words returns when the spec recurs, in English: "every 5 minutes", "at 09:00 on weekdays in Europe/Berlin". It leaves
// out start, end, count and jitter. It is "" if the times of the spec are not valid.
func (s Spec) Words() string {
	s = s.WithDefaults()
	if s.Every > 0 {
		text := "every " + spanWords(s.Every)
		if s.Phase > 0 {
			text += ", shifted by " + amountWords(s.Phase)
		}
		return text
	}
	c, err := parseCron(s.Cron)
	if err != nil {
		return ""
	}
	day, month := c.dayWords(), c.monthWords()
	if day == "" && month == "" && c.repeatsThroughTheDay() {
		return c.timeWords() + " in " + s.Zone
	}
	text := c.timeWords()
	switch {
	case day == "" && month == "":
		text += " every day"
	case day == "":
		text += " every day in " + month + ","
	case month == "":
		text += " " + day
	case c.weekdays&allWeek == allWeek:
		text += " " + day + " of " + month + ","
	default:
		text += " " + day + " in " + month + ","
	}
	return text + " in " + s.Zone
}

// spanWords returns an interval after "every": "5 minutes", "day", "1 hour 30 minutes".
func spanWords(d time.Duration) string {
	text := amountWords(d)
	if unit, single := strings.CutPrefix(text, "1 "); single && !strings.Contains(unit, " ") {
		return unit
	}
	return text
}

// amountWords returns a duration in words: "90 milliseconds", "1 hour 30 minutes".
func amountWords(d time.Duration) string {
	var words []string
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{
		{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"},
		{time.Millisecond, "millisecond"},
	} {
		if n := d / unit.length; n > 0 {
			word := fmt.Sprintf("%d %s", n, unit.name)
			if n > 1 {
				word += "s"
			}
			words = append(words, word)
			d -= n * unit.length
		}
	}
	return strings.Join(words, " ")
}

// Sets of all values of a field.
const (
	allSixty  = 1<<60 - 1
	allHours  = 1<<24 - 1
	allDays   = 1<<32 - 1<<1
	allMonths = 1<<13 - 1<<1
	allWeek   = 1<<7 - 1
	workdays  = 1<<6 - 1<<1
)

// members returns the numbers of a set, in order.
func members(set uint64) (all []int) {
	for ; set != 0; set &= set - 1 {
		all = append(all, bits.TrailingZeros64(set))
	}
	return all
}

// progression returns the distance of the members of a set with at least two members, if it is always the same.
func progression(all []int) (step int, ok bool) {
	if len(all) < 2 {
		return 0, false
	}
	step = all[1] - all[0]
	for i := 1; i < len(all); i++ {
		if all[i]-all[i-1] != step {
			return 0, false
		}
	}
	return step, true
}

// interval returns n if a set holds every nth value of a field from 0 on, and n divides the number of values, so that
// the distance is the same across the end of the field.
func interval(set uint64, values int) (n int, ok bool) {
	all := members(set)
	step, ok := progression(all)
	if !ok || all[0] != 0 || values%step != 0 || len(all) != values/step {
		return 0, false
	}
	return step, true
}

// listWords joins words: "a, b and c".
func listWords(words []string, conjunction string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " " + conjunction + " " + words[last]
}

// setWords names the members of a set: "5", "1 to 5", "3, 4 and 9".
func setWords(set uint64, name func(int) string) string {
	all := members(set)
	if step, regular := progression(all); len(all) > 2 && regular && step == 1 {
		return name(all[0]) + " to " + name(all[len(all)-1])
	}
	words := make([]string, len(all))
	for i, n := range all {
		words[i] = name(n)
	}
	return listWords(words, "and")
}

// unitWords names the members of a set with their unit: "minute 5", "minutes 5 and 20", "every 7th minute from 0 to
// 56".
func unitWords(set uint64, unit string) string {
	all := members(set)
	if step, regular := progression(all); len(all) > 4 && regular && step > 1 {
		return fmt.Sprintf("every %s %s from %d to %d", ordinal(step), unit, all[0], all[len(all)-1])
	}
	if len(all) > 1 {
		unit += "s"
	}
	return unit + " " + setWords(set, strconv.Itoa)
}

// ordinal returns "1st", "2nd", "13th".
func ordinal(n int) string {
	suffix := "th"
	if n/10%10 != 1 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return strconv.Itoa(n) + suffix
}

// repeatsThroughTheDay reports whether the words for the time need no "every day": "every 5 minutes".
func (c cron) repeatsThroughTheDay() bool {
	if c.hours == allHours {
		return true
	}
	_, ok := interval(c.hours, 24)
	return ok && bits.OnesCount64(c.minutes) == 1 && bits.OnesCount64(c.seconds) == 1
}

// timeWords returns the time of day: "every 5 minutes", "at 09:00 and 17:30", "every 15 minutes from 09:00 to 17:45".
func (c cron) timeWords() string {
	hours, minutes, seconds := members(c.hours), members(c.minutes), members(c.seconds)
	onTheMinute := c.seconds == 1
	switch {
	case c.hours == allHours && c.minutes == allSixty:
		if c.seconds == allSixty {
			return "every second"
		}
		if onTheMinute {
			return "every minute"
		}
		if n, ok := interval(c.seconds, 60); ok {
			return fmt.Sprintf("every %d seconds", n)
		}
		return "at " + unitWords(c.seconds, "second") + " of every minute"
	case c.hours == allHours && onTheMinute:
		if c.minutes == 1 {
			return "every hour"
		}
		if n, ok := interval(c.minutes, 60); ok {
			return fmt.Sprintf("every %d minutes", n)
		}
		return "at " + unitWords(c.minutes, "minute") + " of every hour"
	case len(hours)*len(minutes) <= 6 && len(seconds) == 1:
		var times []string
		for _, h := range hours {
			for _, m := range minutes {
				times = append(times, clockWords(h, m, seconds[0]))
			}
		}
		return "at " + listWords(times, "and")
	case onTheMinute && len(minutes) == 1:
		if n, ok := interval(c.hours, 24); ok && minutes[0] == 0 {
			return fmt.Sprintf("every %d hours", n)
		} else if ok {
			return fmt.Sprintf("every %d hours, at minute %d", n, minutes[0])
		}
		if step, ok := progression(hours); ok && step == 1 {
			return "every hour from " + clockWords(hours[0], minutes[0], 0) + " to " +
				clockWords(hours[len(hours)-1], minutes[0], 0)
		}
	case onTheMinute:
		n, even := interval(c.minutes, 60)
		if step, ok := progression(hours); even && (len(hours) == 1 || ok && step == 1) {
			every := "every minute"
			if n > 1 {
				every = fmt.Sprintf("every %d minutes", n)
			}
			return every + " from " + clockWords(hours[0], 0, 0) + " to " +
				clockWords(hours[len(hours)-1], minutes[len(minutes)-1], 0)
		}
	}
	text := unitWords(c.minutes, "minute") + " of " + unitWords(c.hours, "hour")
	if !onTheMinute {
		text = unitWords(c.seconds, "second") + ", " + text
	}
	return "at " + text
}

func clockWords(hour, minute, second int) string {
	if second == 0 {
		return fmt.Sprintf("%02d:%02d", hour, minute)
	}
	return fmt.Sprintf("%02d:%02d:%02d", hour, minute, second)
}

// dayWords returns the days of a month: "on weekdays", "on the 1st and 15th", or "" for every day.
func (c cron) dayWords() string {
	days, week := "", ""
	if c.days != allDays {
		days = "on " + monthDayWords(c.days)
	}
	switch {
	case c.weekdays&allWeek == allWeek:
	case c.weekdays&allWeek == workdays:
		week = "on weekdays"
	default:
		week = "on " + setWords(c.weekdays&allWeek, func(n int) string { return time.Weekday(n).String() })
	}
	switch {
	case days == "" || week == "":
		// If neither field begins with *, a day matches if one of the fields names it. So a field with every value makes
		// every day match, although it is not written as *.
		if !c.anyDay && !c.anyWeekday {
			return ""
		}
		return days + week
	case c.anyDay || c.anyWeekday:
		return days + ", only " + week + ","
	}
	return days + " or " + week
}

// monthDayWords names days of a month: "the 1st and 15th", "every 2nd day from the 1st to the 31st".
func monthDayWords(days uint64) string {
	all := members(days)
	if step, regular := progression(all); len(all) > 4 && regular && step > 1 {
		return fmt.Sprintf("every %s day from the %s to the %s", ordinal(step), ordinal(all[0]),
			ordinal(all[len(all)-1]))
	}
	return "the " + setWords(days, ordinal)
}

// monthWords returns the months: "January and July", or "" for every month.
func (c cron) monthWords() string {
	if c.months == allMonths {
		return ""
	}
	return setWords(c.months, func(n int) string { return time.Month(n).String() })
}
