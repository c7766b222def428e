package browser

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/dashboard"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// The login page and the overview have no violation of accessibility and fit the window, in both themes and widths.
func TestLoginAndOverviewAreAccessible(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.bridge()
	for _, queue := range []string{"orders", "mails"} {
		r.send(queue, "m-1", "hello", bridge.In(time.Hour))
		r.send(queue, "m-2", "hello")
	}
	b := r.browser()
	b.view("login", "", "Make a token")
	b.logIn(access.Inspect)
	b.view("overview", "", "orders")
	b.expects("404")
	b.view("failure", "nothing", "has no such page")
}

// The dashboard works at every address: behind a proxy that strips the path, behind one that does not, and without a
// proxy. Over TLS the browser sends the cookie to TLS alone, no script reads it, and links stay below the path.
func TestTheDashboardWorksAtEveryAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send("orders", "m-1", "hello", bridge.In(time.Hour))
	for name, base := range map[string]string{"stripping": r.stripping, "passing": r.passing, "direct": r.direct} {
		b := r.browserAt(base)
		b.logIn(access.Inspect)
		b.sees("orders")
		var cookies, address string
		b.eval("document.cookie", &cookies)
		if strings.Contains(cookies, "session") {
			t.Errorf("%s: scripts see the cookies %s", name, cookies)
		}
		cookieName := "duestream_session"
		if strings.HasPrefix(base, "https:") {
			cookieName = "__Secure-" + cookieName
		}
		cookie := b.cookie(cookieName)
		redistest.Want(t, name+": Secure", cookie.Secure, strings.HasPrefix(base, "https:"))
		redistest.Want(t, name+": HttpOnly", cookie.HTTPOnly, true)
		redistest.Want(t, name+": SameSite", cookie.SameSite.String(), "Strict")
		redistest.Want(t, name+": Path", cookie.Path, strings.TrimSuffix(path, "/"))
		b.click(`form[action="logout"] button`)
		b.sees("Make a token")
		b.eval("location.href", &address)
		redistest.Want(t, name+": address", address, base+"login")
		b.open("")
		b.sees("Make a token") // the cookie is gone
	}
}

// A page follows the queues by itself. It closes its stream of updates while the tab is hidden, and opens it again.
func TestAHiddenTabClosesItsStream(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send("orders", "m-1", "hello", bridge.In(time.Hour))
	b := r.browser()
	b.logIn(access.Inspect)
	b.sees("orders")
	r.streamsAre(1)
	r.send("mails", "m-1", "hello", bridge.In(time.Hour))
	b.sees("mails")
	b.hide(true)
	r.streamsAre(0)
	r.send("reports", "m-1", "hello", bridge.In(time.Hour))
	b.hide(false)
	r.streamsAre(1)
	b.sees("reports")
}

// While Redis is away, an open page says so, a new page says so, and both recover by themselves.
func TestPagesSurviveAnOutageOfRedis(t *testing.T) {
	t.Parallel()
	redistest.Long(t)
	r := newRigOn(t, redistest.Own(t, "--appendonly", "yes"), nil)
	r.send("orders", "m-1", "hello", bridge.In(time.Hour))
	secret := r.token([]access.Verb{access.Inspect})
	open, other := r.browser(), r.browser()
	for _, b := range []*browser{open, other} {
		b.expects("503")
		b.logInWith(secret)
		b.sees("orders")
	}
	r.Server.Stop()
	open.sees("Redis does not answer")
	open.sees("orders") // the last state stays
	open.looks("overview-away")
	other.open("?filter=orders")
	other.sees("Redis does not answer")
	other.looks("failure-away")
	r.Server.Start()
	open.lacks("Redis does not answer")
	other.lacks("Redis does not answer")
	other.sees("orders")
}

// The address that "duestream dev" prints has the secret behind #. The login page sends it, and removes it from the
// address bar.
func TestAnAddressWithASecretLogsIn(t *testing.T) {
	t.Parallel()
	redistest.Long(t)
	r := newRigOn(t, redistest.Shared(t), func(cfg *dashboard.Config) { cfg.LoginByAddress = true })
	r.send("orders", "m-1", "hello", bridge.In(time.Hour))
	secret := r.token([]access.Verb{access.Inspect})
	b := r.browser()
	b.open("login#" + secret)
	b.sees("orders")
	b.isAt("")
	redistest.Want(t, "lines of the log with the secret", r.log.Count(secret), 0)
}

// The keyboard alone must be enough: to read the list of keys, to go through the rows, to open a queue, and to search.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send("mails", "m-1", "hello", bridge.In(time.Hour))
	r.send("orders", "m-1", "hello", bridge.In(time.Hour))
	b := r.browser()
	b.logIn(access.Inspect)
	b.sees("orders")
	b.press("?")
	b.sees("next row, previous row")
	b.press("Escape")
	b.lacks("next row, previous row")
	b.press("j", "j")
	b.enter()
	b.isAt("queue?queue=orders")
	b.press("g", "o")
	b.sees("Filter by name")
	b.press("/", "m", "-", "1")
	b.enter()
	b.isAt("search?q=m-1")
}

// The figures of the overview must follow the work: what a worker holds, and what has failed for good.
func TestOverviewFollowsTheWork(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.bridge()
	hold := make(chan struct{})
	r.worker("orders", "g", func(ctx context.Context, m *bridge.Message) error {
		select {
		case <-hold:
		case <-ctx.Done():
		}
		return bridge.DeadLetter(errors.New("no such order"))
	})
	b := r.browser()
	b.logIn(access.Inspect)
	r.send("orders", "order-42", "hello")
	redistest.Want(t, "columns", b.text("thead th:nth-child(5)")+b.text("thead th:nth-child(7)"), "PendingDead")
	cell := func(column, want string) {
		t.Helper()
		b.until(func() (bool, string) {
			shown := b.text("tbody tr td:nth-child(" + column + ")")
			return strings.TrimSpace(shown) == want, "column " + column + " is " + shown
		})
	}
	cell("5", "1")
	cell("7", "0")
	close(hold)
	cell("5", "0")
	cell("7", "1")
	redistest.Want(t, "rows", b.count("table.rows tbody tr"), 1)
}

// An overview of 500 queues must be as light as any page, sort and filter them, and follow each one.
func TestOverviewOfFiveHundredQueues(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 500 {
		r.On(fmt.Sprintf("partner-%03d", i)).Enqueue(lua.Item{ID: "m-1", When: lua.After(time.Hour), Payload: []byte("p")})
		must(t, r.op.Register(t.Context(), fmt.Sprintf("partner-%03d", i)))
	}
	b := r.browser()
	b.logIn(access.Inspect)
	b.weighs("overview-500", "")
	b.counts("table.rows tbody tr", 500)
	b.press("k") // the last row
	b.enter()
	b.isAt("queue?queue=partner-499")
	b.open("")
	b.click("thead th:nth-child(2) a")
	b.isAt("?order=down&sort=scheduled")
	r.send("partner-499", "m-2", "hello", bridge.In(time.Hour))
	b.until(func() (bool, string) { // the page follows, in its order
		first := b.text("tbody tr:first-child")
		return strings.Contains(first, "partner-499"), "the first row is " + first
	})
	b.show(true, phoneWidth)
	var wide int
	b.eval("document.documentElement.scrollWidth", &wide)
	redistest.Want(t, "width on a phone", wide, phoneWidth)
	b.show(false, deskWidth)
	b.fill("#filter", "r-42")
	b.press("Enter")
	b.counts("table.rows tbody tr", 10)
}
