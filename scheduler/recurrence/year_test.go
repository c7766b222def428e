package recurrence

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"
)

// expressions are the cron expressions that are compared: fixed times, every hour, ranges, steps, days of both kinds,
// names, seconds.
var expressions = []string{
	"0 0 * * *", "30 0 * * *", "30 1 * * *", "45 1 * * *", "0 2 * * *", "15 2 * * *", "30 2 * * *", "59 2 * * *", "0 3 * * *",
	"30 12 * * *", "59 23 * * *", "*/30 * * * *", "*/7 * * * *", "0 * * * *", "5,35 * * * *", "*/10 2 * * *", "*/20 1-3 * * *",
	"0 */2 * * *", "30 1-23/2 * * *", "0 0,12 * * *", "0 9 * * 1-5", "0 9 * * mon-fri", "30 2 * * 0", "30 2 * * 7", "0 0 * * sat,sun",
	"0 0 1 * *", "0 0 31 * *", "30 2 29 2 *", "0 0 13 * 5", "0 12 */2 * *", "0 12 * * */2", "15 10 1-7 jan,jul *", "0 0 1 1 *",
	"0-59/15 0-23 * * *", "* 2 * * *", "@daily", "@hourly", "@weekly", "@monthly", "0,15,30,45 0,1,2,3 * 2-4,9-12 *",
}

// places are zones, each with a year in which its clocks change.
var places = []struct {
	zone string
	year int
}{
	{"Europe/Berlin", 2026}, {"America/New_York", 2026}, {"Australia/Lord_Howe", 2026}, {"America/Sao_Paulo", 2018},
	{"Africa/Cairo", 2024}, {"Asia/Kathmandu", 2026}, {"Pacific/Apia", 2011}, {"UTC", 2024},
}

// oracle is a second implementation of the policy for changes of the clocks. It steps through elapsed time and reads
// the clock at each step.
type oracle struct {
	fields   [6]map[int]bool
	anyDay   bool
	eachHour bool
}

func newOracle(text string) (o oracle) {
	words := strings.Fields(map[string]string{"@daily": "0 0 * * *", "@hourly": "0 * * * *", "@weekly": "0 0 * * 0",
		"@monthly": "0 0 1 * *"}[text])
	if len(words) == 0 {
		words = strings.Fields(text)
	}
	if len(words) == 5 {
		words = append([]string{"0"}, words...)
	}
	ends := [6][2]int{{0, 59}, {0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 7}}
	names := map[string]int{"jan": 1, "jul": 7, "mon": 1, "fri": 5, "sat": 6, "sun": 0}
	number := func(s string) int {
		if n, ok := names[s]; ok {
			return n
		}
		n, err := strconv.Atoi(s)
		if err != nil {
			panic(s)
		}
		return n
	}
	for i, word := range words {
		o.fields[i] = map[int]bool{}
		for _, part := range strings.Split(word, ",") {
			step := 1
			if at := strings.Index(part, "/"); at >= 0 {
				part, step = part[:at], number(part[at+1:])
			}
			from, to := ends[i][0], ends[i][1]
			if part != "*" {
				both := strings.Split(part, "-")
				from, to = number(both[0]), number(both[len(both)-1])
			}
			for n := from; n <= to; n += step {
				o.fields[i][n] = true
			}
		}
	}
	o.fields[5][0] = o.fields[5][0] || o.fields[5][7]
	o.anyDay = strings.HasPrefix(words[3], "*") || strings.HasPrefix(words[5], "*")
	o.eachHour = len(o.fields[2]) == 24
	return o
}

func (o oracle) matches(wall int64) bool {
	if !o.fields[0][int(wall%60)] || !o.fields[1][int(wall/60%60)] || !o.fields[2][int(wall/3600%24)] {
		return false
	}
	t := time.Unix(wall, 0).UTC()
	day, weekday := o.fields[3][t.Day()], o.fields[5][int(t.Weekday())]
	return o.fields[4][int(t.Month())] && (day && weekday || !o.anyDay && (day || weekday))
}

// walk calls found for each occurrence in [from, to), in steps of step seconds.
func (o oracle) walk(zone *time.Location, from, to, step int64, found func(at int64)) {
	wallAt := func(t int64) int64 {
		_, offset := time.Unix(t, 0).In(zone).Zone()
		return t + int64(offset)
	}
	const before = 26 * 3600 // seconds: begin so much earlier, to notice readings of the clock that repeat
	last := wallAt(from - before - step)
	most := last
	for t := from - before; t < to; t += step {
		wall, fires := wallAt(t), false
		for missing := last + step; missing < wall && !o.eachHour; missing += step {
			midnight := missing - missing%86400
			whole := midnight > last && midnight+86400 <= wall
			fires = fires || !whole && o.matches(missing)
		}
		if o.eachHour || wall > most {
			fires = fires || o.matches(wall)
		}
		if fires && t >= from {
			found(t)
		}
		last, most = wall, max(most, wall)
	}
}

// windows returns the parts of a year that are compared, in Unix seconds: around the changes of the clocks, the end of
// February and the ends of the year. With DUESTREAM_TEST_FULL it is the whole year.
func windows(zone *time.Location, year int) (parts [][2]int64) {
	from, to := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC).Unix(), time.Date(year+1, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	if os.Getenv("DUESTREAM_TEST_FULL") != "" {
		return [][2]int64{{from, to}}
	}
	const around = 30 * 3600
	offset := func(t int64) int { _, n := time.Unix(t, 0).In(zone).Zone(); return n }
	parts = [][2]int64{{from - around, from + around}, {from + 58*86400, from + 61*86400}}
	for t := from; t < to; t += 3600 {
		if offset(t) != offset(t+3600) {
			parts = append(parts, [2]int64{t - around, t + around})
		}
	}
	return parts
}

// Next must return the occurrences that the oracle finds. With DUESTREAM_TEST_FULL=1 the test compares each second of a
// year, which takes minutes. Otherwise it compares each minute of the windows, with every other expression.
func TestAYearInEightZones(t *testing.T) {
	t.Parallel()
	full := os.Getenv("DUESTREAM_TEST_FULL") != ""
	for p, place := range places {
		t.Run(place.zone, func(t *testing.T) {
			t.Parallel()
			zone, err := time.LoadLocation(place.zone)
			if err != nil {
				t.Fatal(err)
			}
			compared := 0
			for e, text := range expressions {
				if !full && (p+e)%2 == 1 {
					continue
				}
				s, err := Spec{Name: "n", Queue: "q", Cron: text, Zone: place.zone}.Compile()
				if err != nil {
					t.Fatal(err)
				}
				compared += compare(t, s, zone, place.year)
			}
			t.Logf("%d occurrences", compared)
		})
	}
}

// compare compares the occurrences of a schedule with those of the oracle, and returns their number.
func compare(t *testing.T, s *Schedule, zone *time.Location, year int) (compared int) {
	t.Helper()
	step := int64(60)
	if os.Getenv("DUESTREAM_TEST_FULL") != "" {
		step = 1
	}
	o := newOracle(s.Cron)
	for _, part := range windows(zone, year) {
		after := time.Unix(part[0], 0).Add(-time.Millisecond)
		wrong := ""
		o.walk(zone, part[0], part[1], step, func(at int64) {
			next, ok := s.Next(after)
			if want := time.Unix(at, 0); wrong == "" && (!ok || !next.Equal(want)) {
				wrong = fmt.Sprintf("%q after %s: %s, and the policy says %s", s.Cron, after.In(zone), next, want.In(zone))
			}
			after = time.Unix(at, 0)
			compared++
		})
		if next, ok := s.Next(after); wrong == "" && ok && next.Unix() < part[1] {
			wrong = fmt.Sprintf("%q after %s: %s, and the policy says nothing until %s", s.Cron, after.In(zone), next,
				time.Unix(part[1], 0).In(zone))
		}
		if wrong != "" {
			t.Error(wrong)
		}
	}
	return compared
}
