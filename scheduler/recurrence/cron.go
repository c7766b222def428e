package recurrence

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

// maxCronBytes bounds an expression.
const maxCronBytes = 512

// cron is a parsed expression. In each set, bit n is 1 if the value n matches.
type cron struct {
	seconds, minutes, hours, days, months, weekdays uint64
	anyDay, anyWeekday                              bool // whether the field begins with * or ?
}

// cronField is the range of values of one field of an expression.
type cronField struct {
	name        string
	least, most int
	names       []string // names of the values, the first one for least
}

var (
	monthNames = []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}
	dayNames   = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

	cronFields = [6]cronField{
		{"second", 0, 59, nil}, {"minute", 0, 59, nil}, {"hour", 0, 23, nil}, {"day of the month", 1, 31, nil},
		{"month", 1, 12, monthNames}, {"day of the week", 0, 7, dayNames},
	}

	descriptors = map[string]string{
		"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
		"@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
	}
)

// parseCron parses five fields (minute, hour, day of the month, month, day of the week), six with seconds in front, or
// @daily and the like. Days match as in every cron: if neither of the two fields for days begins with * or ?, a day
// matches if one of them names it.
func parseCron(text string) (cron, error) {
	if len(text) > maxCronBytes {
		return cron{}, lua.Invalid("cron", text, "must be at most %d bytes", maxCronBytes)
	}
	expanded := strings.ToLower(strings.TrimSpace(text))
	if strings.HasPrefix(expanded, "@") {
		known := descriptors[expanded]
		if known == "" {
			return cron{}, lua.Invalid("cron", text, "must be @yearly, @monthly, @weekly, @daily or @hourly where it "+
				"begins with @; for @every there is `every`")
		}
		expanded = known
	}
	words := strings.Fields(expanded)
	if len(words) == 5 {
		words = append([]string{"0"}, words...)
	}
	if strings.Contains(text, "=") {
		return cron{}, lua.Invalid("cron", text, "must not name a time zone: that is a field of its own")
	}
	if len(words) != 6 {
		return cron{}, lua.Invalid("cron", text, "must have 5 fields (minute, hour, day of the month, month, day of the week), "+
			"or 6 with seconds in front; it has %d", len(strings.Fields(expanded)))
	}
	var sets [6]uint64
	for i, word := range words {
		set, err := cronFields[i].parse(word)
		if err != nil {
			return cron{}, lua.Invalid("cron", text, "%v", err)
		}
		sets[i] = set
	}
	weekdays := sets[5] | sets[5]>>7 // 7 is Sunday, like 0
	c := cron{sets[0], sets[1], sets[2], sets[3], sets[4], weekdays, beginsWithAny(words[3]), beginsWithAny(words[5])}
	if _, ok := c.next(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)); !ok {
		return cron{}, lua.Invalid("cron", text, "must name a date that exists")
	}
	return c, nil
}

func beginsWithAny(word string) bool { return word[0] == '*' || word[0] == '?' }

// parse parses one field: a list of *, values or ranges, each with an optional step.
func (f cronField) parse(word string) (set uint64, err error) {
	for part := range strings.SplitSeq(word, ",") {
		span, stepText, stepped := strings.Cut(part, "/")
		from, to, step := f.least, f.most, 1
		switch first, last, isRange := strings.Cut(span, "-"); {
		case span == "*" || span == "?":
		case isRange:
			if from, err = f.value(first); err == nil {
				to, err = f.value(last)
			}
			if err == nil && from > to {
				err = fmt.Errorf("the %s is %q: a range must not run backwards", f.name, part)
			}
		default:
			from, err = f.value(span)
			if !stepped {
				to = from
			}
		}
		if err != nil {
			return 0, err
		}
		if stepped {
			if step, err = strconv.Atoi(stepText); err != nil || step < 1 || step > f.most {
				return 0, fmt.Errorf("the %s is %q: a step must be 1 to %d", f.name, part, f.most)
			}
		}
		for i := from; i <= to; i += step {
			set |= 1 << i
		}
	}
	return set, nil
}

// value parses one value: a number, or a name of the field.
func (f cronField) value(text string) (int, error) {
	for i, name := range f.names {
		if text == name {
			return f.least + i, nil
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < f.least || n > f.most || text[0] == '+' || text[0] == '-' {
		names := ""
		if f.names != nil {
			names = fmt.Sprintf(", or %s to %s", f.names[0], f.names[len(f.names)-1])
		}
		return 0, fmt.Errorf("the %s is %q: must be %d to %d%s", f.name, text, f.least, f.most, names)
	}
	return n, nil
}
