package recurrence

import (
	"testing"
	"time"
)

func TestWords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ cron, zone, want string }{
		{"* * * * *", "", "every minute in UTC"},
		{"* * * * * *", "", "every second in UTC"},
		{"*/5 * * * *", "", "every 5 minutes in UTC"},
		{"0,15,30,45 * * * *", "", "every 15 minutes in UTC"},
		{"*/7 * * * *", "", "at every 7th minute from 0 to 56 of every hour in UTC"},
		{"5 * * * *", "", "at minute 5 of every hour in UTC"},
		{"5,20 * * * *", "", "at minutes 5 and 20 of every hour in UTC"},
		{"*/10 * * * * *", "", "every 10 seconds in UTC"},
		{"7,9 * * * * *", "", "at seconds 7 and 9 of every minute in UTC"},
		{"@hourly", "", "every hour in UTC"},
		{"@daily", "Europe/Berlin", "at 00:00 every day in Europe/Berlin"},
		{"@weekly", "", "at 00:00 on Sunday in UTC"},
		{"@monthly", "", "at 00:00 on the 1st in UTC"},
		{"@yearly", "", "at 00:00 on the 1st of January, in UTC"},
		{"0 9 * * 1-5", "Europe/Berlin", "at 09:00 on weekdays in Europe/Berlin"},
		{"0 9,18 * * mon,wed,fri", "", "at 09:00 and 18:00 on Monday, Wednesday and Friday in UTC"},
		{"30 9 * * 7", "", "at 09:30 on Sunday in UTC"},
		{"30 9 * * 2-6", "", "at 09:30 on Tuesday to Saturday in UTC"},
		{"15 30 9 * * *", "", "at 09:30:15 every day in UTC"},
		{"0 */2 * * *", "", "every 2 hours in UTC"},
		{"20 */2 * * *", "", "every 2 hours, at minute 20 in UTC"},
		{"0 */2 * * 6", "", "every 2 hours on Saturday in UTC"},
		{"0 8-17 * * *", "", "every hour from 08:00 to 17:00 every day in UTC"},
		{"*/15 9-17 * * 1-5", "", "every 15 minutes from 09:00 to 17:45 on weekdays in UTC"},
		{"* 9 * * *", "", "every minute from 09:00 to 09:59 every day in UTC"},
		{"0 0 1,15 * *", "", "at 00:00 on the 1st and 15th in UTC"},
		{"0 0 1-7 * *", "", "at 00:00 on the 1st to 7th in UTC"},
		{"0 0 13 * 5", "", "at 00:00 on the 13th or on Friday in UTC"},
		{"0 0 */2 * 5", "", "at 00:00 on every 2nd day from the 1st to the 31st, only on Friday, in UTC"},
		{"0 0 1-31 * 5", "", "at 00:00 every day in UTC"},
		{"0 0 * jan,jul *", "", "at 00:00 every day in January and July, in UTC"},
		{"0 0 1 6-8 *", "", "at 00:00 on the 1st of June to August, in UTC"},
		{"1,2 3-9/2 * * *", "", "at minutes 1 and 2 of hours 3, 5, 7 and 9 every day in UTC"},
		{"3,4 1,2 3-9/2 * * *", "", "at seconds 3 and 4, minutes 1 and 2 of hours 3, 5, 7 and 9 every day in UTC"},
		{"0 0 * jan mon", "", "at 00:00 on Monday in January, in UTC"},
		{"nonsense", "", ""},
		{"", "", ""},
	} {
		if got := (Spec{Cron: c.cron, Zone: c.zone}).Words(); got != c.want {
			t.Errorf("%q: %q, want %q", c.cron, got, c.want)
		}
	}
	for _, c := range []struct {
		every, phase time.Duration
		want         string
	}{
		{time.Second, 0, "every second"},
		{5 * time.Minute, 0, "every 5 minutes"},
		{90 * time.Minute, 0, "every 1 hour 30 minutes"},
		{24 * time.Hour, time.Hour, "every day, shifted by 1 hour"},
		{1500 * time.Millisecond, 0, "every 1 second 500 milliseconds"},
		{time.Minute, 250 * time.Millisecond, "every minute, shifted by 250 milliseconds"},
	} {
		if got := (Spec{Every: c.every, Phase: c.phase}).Words(); got != c.want {
			t.Errorf("%s + %s: %q, want %q", c.every, c.phase, got, c.want)
		}
	}
}
