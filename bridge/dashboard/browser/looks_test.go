package browser

import (
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
)

// A phone shows no scroll bar, so a table that goes on to the right must fade at its edge until its end is in view.
func TestATableFadesWhereItGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.op.Recur(t.Context(), bridge.Recurrence{Queue: "reports", Name: "nightly-report-of-the-whole-shop",
		Cron: "30 3 * * *", Zone: "America/New_York"})
	must(t, err)
	b := r.browser()
	b.logIn(access.Verbs()...)
	b.open("recurrences")
	b.sees("nightly-report")
	faded := func(what string, want int) {
		t.Helper()
		redistest.Eventually(t, patience, func() (bool, string) {
			got := b.count(".scroll.more")
			return got == want, fmt.Sprintf("%s: %d tables fade, want %d", what, got, want)
		})
	}
	b.show(false, deskWidth)
	faded("on a desk", 0)
	b.show(false, phoneWidth)
	faded("on a phone", 1)
	var ok bool
	b.eval(`(() => {
		const box = document.querySelector('.scroll');
		box.scrollLeft = box.scrollWidth;
		return true;
	})()`, &ok)
	faded("at the end of the table", 0)
}

// The labels below the bars must be in one line, each where its bar begins. Regression: the fourth of five labels fell
// into a second line, below the first bar.
func TestLabelsOfDueTimesStandBelowTheirBars(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send(r.Queue, "a", "p", bridge.In(time.Hour))
	b := r.browser()
	b.logIn(access.Verbs()...)
	b.show(false, deskWidth)
	b.open("queue?queue=" + r.Queue + "&tab=due")
	b.sees("Due times by hour")
	var places string
	b.eval(`(() => {
		const axis = document.querySelector('.axis.quarters').getBoundingClientRect();
		const labels = [...document.querySelectorAll('.axis.quarters span')].map((s) => s.getBoundingClientRect());
		const lefts = labels.slice(0, -1).map((l) => Math.round(100 * (l.left - axis.left) / axis.width));
		const lines = new Set(labels.map((l) => Math.round(l.top))).size;
		return lefts.join(' ') + ', lines: ' + lines;
	})()`, &places)
	redistest.Want(t, "labels in percent", places, "0 25 50 75, lines: 1")
}

// The story tells milliseconds, and leaves out the day of today. The footer names the zone.
func TestMomentsOfAStory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Policy(map[string]string{"history": "100"})
	r.send(r.Queue, "a", "p", bridge.In(time.Hour))
	b := r.browser()
	b.logIn(access.Verbs()...)
	b.open("message?queue=" + r.Queue + "&id=a")
	b.sees("times in")
	var shown bool
	b.eval(`(() => {
		const time = document.querySelector('time[data-moment]');
		const today = new Date(time.dateTime).toDateString() === new Date().toDateString();
		const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
		return /:\d\d\.\d{3}/.test(time.textContent) && today !== /20\d\d/.test(time.textContent) &&
			document.querySelector('footer [data-zone]').textContent === zone;
	})()`, &shown)
	redistest.Want(t, "milliseconds without the day", shown, true)
}
