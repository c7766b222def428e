package dashboard

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

const hostileText = `"><script>alert(1)</script>`

// The bars must count each message once, and the link of a bar must list the messages in it.
func TestDueTimesByMinuteHourDayAndMonth(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	base := time.Date(2031, 3, 10, 12, 0, 0, 0, time.UTC)
	for id, due := range map[string]time.Time{
		"first": base, "same-minute": base.Add(59 * time.Second), "next-minute": base.Add(time.Minute),
		"next-hour": base.Add(time.Hour), "next-day": base.AddDate(0, 0, 1), "last-day": base.AddDate(0, 0, 21),
		"next-month": base.AddDate(0, 0, 22), hostileText: base.AddDate(0, 11, 0),
	} {
		_, err := r.client.Schedule(t.Context(), r.Queue, []byte(id), bridge.At(due), bridge.WithID(id))
		if err != nil {
			t.Fatal(err)
		}
	}
	v := r.viewer(inspect, r.Queue)
	page := "queue?queue=" + r.Queue + "&tab=due&from=2031-03-10T12:00:00Z&by="
	for by, wanted := range map[string][]string{
		"minute": {"Mon", "12:00: 2 messages", "12:01: 1 message"},
		"hour":   {"Mon 10 Mar 12:00: 3 messages", "Mon 10 Mar 13:00: 1 message", "Tue 11 Mar 12:00: 1 message"},
		"day":    {"Mon 10 Mar 2031: 4 messages", "Tue 11 Mar 2031: 1 message", "Mon 31 Mar 2031: 1 message"},
		"month":  {"March 2031: 6 messages", "April 2031: 1 message", "February 2032: 1 message"},
	} {
		status, text := v.get(page + by)
		redistest.Want(t, by, status, http.StatusOK)
		if by == "minute" {
			wanted = wanted[1:]
		}
		contains(t, text, wanted...)
	}
	status, text := v.get(page + "minute&first=2031-03-10T12:00:00Z&until=2031-03-10T12:01:00Z")
	redistest.Want(t, "status of a list", status, http.StatusOK)
	contains(t, text, "2 messages due", ">first<", ">same-minute<")
	lacks(t, text, ">next-minute<")
	_, text = v.get(page + "month&first=2031-04-02T00:00:00Z&n=1")
	contains(t, text, "1 message due", "&lt;script&gt;alert(1)")
	lacks(t, text, "<script>alert")
	_, text = v.get(page + "month&until=2035-01-01T00:00:00Z&n=3")
	contains(t, text, "8 messages due", "Show the first 30")
	for _, wrong := range []string{"from=yesterday", "from=9999-01-01T00:00:00Z", "until=1900-01-01T00:00:00Z",
		"until=2031-03-10T12:00:00Z&n=1001", "first=" + url.QueryEscape(hostileText)} {
		status, text := v.get("queue?queue=" + r.Queue + "&tab=due&" + wrong)
		redistest.Want(t, wrong, status, http.StatusBadRequest)
		lacks(t, text, "<script>alert")
	}
}

// Days must begin at midnight of the viewer's time zone, which the script tells in a cookie.
func TestDueTimesUseTheViewersZone(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	due := time.Date(2031, 3, 10, 23, 30, 0, 0, time.UTC) // 11 March in Berlin
	if _, err := r.client.Schedule(t.Context(), r.Queue, nil, bridge.At(due)); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(inspect, r.Queue)
	page := "queue?queue=" + r.Queue + "&tab=due&by=day&from=2031-03-10T00:00:00Z"
	_, text := v.get(page)
	contains(t, text, "in UTC", "Mon 10 Mar 2031: 1 message")
	for _, zone := range []string{"Europe/Berlin", "../../etc/passwd", "Local"} {
		base, err := url.Parse(v.base)
		if err != nil {
			t.Fatal(err)
		}
		v.http.Jar.SetCookies(base, []*http.Cookie{{Name: zoneCookie, Value: zone}})
		_, text := v.get(page)
		if zone == "Europe/Berlin" {
			contains(t, text, "in Europe/Berlin", "Tue 11 Mar 2031: 1 message")
		} else {
			contains(t, text, "in UTC", "Mon 10 Mar 2031: 1 message")
		}
	}
}

// The tab of consumers must show what each consumer holds, with links to the messages.
func TestConsumersShowWhatTheyHold(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Groups("sender", "<b>group</b>")
	r.Ready("one", "two", hostileText)
	r.Take("sender", "<i>worker</i>", 2)
	r.Take("<b>group</b>", "w", 3)
	v := r.viewer(inspect, r.Queue)
	status, text := v.get("queue?queue=" + r.Queue + "&tab=consumers")
	redistest.Want(t, "status", status, http.StatusOK)
	contains(t, text, "&lt;i&gt;worker&lt;/i&gt;", "Held by sender", "id=one", "id=two", "&lt;script&gt;alert(1)")
	lacks(t, text, "<i>worker", "<b>group", "<script>alert")
	status, text = v.get("queue?queue=" + r.Queue + "&tab=consumers&group=sender")
	redistest.Want(t, "status of one group", status, http.StatusOK)
	contains(t, text, "Held by sender", "state=retrying", "group=sender&amp;queue="+r.Queue+"&amp;tab=settings")
	lacks(t, text, "Held by &lt;b")
	status, text = v.get("queue?queue=" + r.Queue + "&tab=consumers&group=sende")
	redistest.Want(t, "status of an unknown group", status, http.StatusNotFound)
	contains(t, text, "did you mean &#34;sender&#34;?")
}

// The tab of waits must tell how to turn the history on, and with a history it must show the waits.
func TestWaitsComeFromTheHistory(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Fill(1)
	page := "queue?queue=" + r.Queue + "&tab=latency"
	_, text := r.viewer(inspect, r.Queue).get(page)
	contains(t, text, "keeps no history", "duestream queue set "+r.Queue+" history=50000/24h")
	lacks(t, text, "<button class=\"primary\">")
	v := r.viewer(operate, r.Queue)
	_, text = v.get(page)
	contains(t, text, `name="history" value="50000"`)
	r.Policy(map[string]string{"history": "100"})
	_, text = v.get(page)
	contains(t, text, "The history has no records yet")
	r.Ready("one", "two")
	_, text = v.get(page)
	contains(t, text, "From due to ready", "half within", "2 waits")
	if strings.Contains(text, "keeps no history") {
		t.Error("the page says that there is no history")
	}
}

// The tab History must show the last changes of messages, with a link to each message, even if the message is gone.
func TestQueueHistoryShowsTheLastChanges(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Fill(1)
	page := "queue?queue=" + r.Queue + "&tab=history"
	v := r.viewer(inspect, r.Queue)
	_, text := v.get(page)
	contains(t, text, "keeps no history", "duestream queue set "+r.Queue+" history=50000/24h")
	r.Policy(map[string]string{"history": "100"})
	_, text = v.get(page)
	contains(t, text, "The history has no changes yet")
	_, err := r.client.Schedule(t.Context(), r.Queue, nil, bridge.WithID(hostileText), bridge.In(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.client.Cancel(t.Context(), r.Queue, hostileText); err != nil {
		t.Fatal(err)
	}
	status, text := v.get(page)
	redistest.Want(t, "status", status, http.StatusOK)
	contains(t, text, "Scheduled for", "Cancelled", "&lt;script&gt;alert(1)", "2 changes")
	lacks(t, text, "<script>alert")
	status, _ = r.viewer(inspect, "other").get(page)
	redistest.Want(t, "status for another queue", status, http.StatusForbidden)
}

// A day of a change from or to summer time has 25 or 23 hours, and the days after it begin at midnight. Regression: all
// days had 24 hours, so from the autumn on each bar had the name of the day before, and one day had two bars.
func TestDaysAndMonthsAreThoseOfTheZone(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, due := range []time.Time{
		time.Date(2031, 10, 26, 0, 30, 0, 0, berlin), time.Date(2031, 10, 26, 23, 30, 0, 0, berlin), // 25 hours
		time.Date(2031, 10, 27, 0, 30, 0, 0, berlin), time.Date(2031, 10, 31, 23, 59, 0, 0, berlin),
		time.Date(2031, 11, 1, 0, 0, 0, 0, berlin),
	} {
		if _, err := r.client.Schedule(t.Context(), r.Queue, nil, bridge.At(due)); err != nil {
			t.Fatal(err)
		}
	}
	v := r.viewer(inspect, r.Queue)
	v.setZone("Europe/Berlin")
	page := "queue?queue=" + r.Queue + "&tab=due&from=2031-10-25T12:00:00Z&by="
	_, text := v.get(page + "day")
	contains(t, text, "Sun 26 Oct 2031: 2 messages", "Mon 27 Oct 2031: 1 message", "Fri 31 Oct 2031: 1 message",
		"Sat 1 Nov 2031: 1 message")
	_, text = v.get(page + "month")
	contains(t, text, "October 2031: 4 messages", "November 2031: 1 message")
	// 2:30 comes twice: at 0:30 and at 1:30 UTC.
	for _, hour := range []int{0, 1} {
		due := bridge.At(time.Date(2031, 10, 26, hour, 30, 0, 0, time.UTC))
		if _, err := r.client.Schedule(t.Context(), r.Queue, nil, due); err != nil {
			t.Fatal(err)
		}
	}
	_, text = v.get(page + "hour")
	contains(t, text, "Sun 26 Oct 02:00 CEST: 1 message", "Sun 26 Oct 02:00 CET: 1 message")
	_, text = v.get("queue?queue=" + r.Queue + "&tab=due&by=hour&from=2031-10-26T01:40:00Z")
	contains(t, text, "from=2031-10-26T01%3A00%3A00Z", "Sun 26 Oct 02:00: 1 message")
}

// A consumer that holds a message for long must be marked, although it is alive.
func TestAConsumerThatHoldsAMessageForLongIsMarked(t *testing.T) {
	t.Parallel()
	entry := func(consumer string, held time.Duration) admin.PendingEntry {
		return admin.PendingEntry{Consumer: consumer, Held: admin.Millis(held)}
	}
	v := consumersView{Held: []heldGroup{
		{Group: "g", Entries: []admin.PendingEntry{entry("a", 3*time.Minute), entry("a", 5*time.Minute),
			entry("b", longHeld-1)}},
		{Group: "h", Entries: []admin.PendingEntry{entry("b", time.Hour)}},
	}}
	for consumer, want := range map[string]time.Duration{"a": 5 * time.Minute, "b": 0, "c": 0} {
		got := time.Duration(v.LongHeld(admin.Consumer{Group: "g", Consumer: consumer}))
		redistest.Want(t, "held by "+consumer, got, want)
	}
}

// With many consumers the tab must list those that hold most, and say how many it leaves out.
func TestTheTabOfConsumersIsBounded(t *testing.T) {
	t.Parallel()
	v := consumersView{Consumers: make([]admin.Consumer, 1000)}
	for i := range v.Consumers {
		v.Consumers[i] = admin.Consumer{Consumer: strconv.Itoa(i), Pending: int64(i / 300)}
	}
	v.hide(500)
	redistest.Want(t, "listed", len(v.Consumers), 500)
	redistest.Want(t, "hidden", v.Hidden, 500)
	redistest.Want(t, "first", v.Consumers[0].Consumer, "300") // consumers that hold a message come first
	redistest.Want(t, "last", v.Consumers[499].Consumer, "999")
	v = consumersView{Consumers: make([]admin.Consumer, 500)}
	v.hide(500)
	redistest.Want(t, "listed of 500", len(v.Consumers), 500)
}
