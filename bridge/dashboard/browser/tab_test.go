package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/css"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
)

const (
	// A wait looks at the page until it shows what the test waits for, and fails after mostLooks. A look, and the pause
	// before it, take longer on a busy machine, so the deadline grows with the load. On an idle machine it is half a
	// minute.
	mostLooks    = 600
	longestPause = 50 * time.Millisecond

	patience   = 20 * time.Second // of redistest.Eventually, which waits for several times as long
	actionTime = 5 * time.Minute  // of one command to Chromium; after that it hangs

	deskWidth, phoneWidth = 1440, 390
	height                = 900
)

// browser is a tab with cookies of its own. Its methods end the test at an error.
type browser struct {
	t    *testing.T
	rig  *rig
	ctx  context.Context
	base string // address of the dashboard

	cookies cdp.BrowserContextID // of the window

	dark  bool
	width int64

	mu       sync.Mutex
	console  []string // all that pages logged
	problems []string // what of it was not expected
	expected []string
	traffic  traffic
}

// browser opens a tab, which finds the dashboard behind the proxy that strips its path.
func (r *rig) browser() *browser { return r.browserAt(r.stripping) }

// browserAt opens a tab, which finds the dashboard at one of the addresses of the rig.
func (r *rig) browserAt(base string) *browser {
	r.T.Helper()
	shared, err := chromium()
	must(r.T, err)
	id, cookies, err := newWindow(shared)
	must(r.T, err)
	ctx, end := chromedp.NewContext(shared, chromedp.WithTargetID(id))
	b := &browser{t: r.T, rig: r, ctx: ctx, base: base, cookies: cookies, width: deskWidth}
	r.tabs++
	number := r.tabs
	chromedp.ListenTarget(ctx, b.listen)
	r.T.Cleanup(func() {
		defer closeWindow(shared, cookies)
		defer end()
		b.mu.Lock()
		problems := slices.Clone(b.problems)
		b.mu.Unlock()
		for _, one := range problems {
			r.T.Error(one)
		}
		if r.T.Failed() {
			b.report(number)
		}
	})
	// The first commands bind chromedp to the tab for as long as their context lives. chromedp follows all nodes of a
	// page, which the tests do not need. Without focus of its own, a page of a window behind another one gets no events
	// of focus.
	must(r.T, chromedp.Run(ctx, css.Disable(), dom.Disable(), emulation.SetFocusEmulationEnabled(true)))
	b.emulate()
	return b
}

// newWindow opens a window with cookies of its own.
func newWindow(shared context.Context) (id target.ID, cookies cdp.BrowserContextID, err error) {
	ctx := cdp.WithExecutor(shared, chromedp.FromContext(shared).Browser)
	cookies, err = target.CreateBrowserContext().WithDisposeOnDetach(true).Do(ctx)
	if err != nil {
		return "", "", err
	}
	id, err = target.CreateTarget("about:blank").WithBrowserContextID(cookies).WithNewWindow(true).Do(ctx)
	if err != nil {
		closeWindow(shared, cookies)
	}
	return id, cookies, err
}

func closeWindow(shared context.Context, cookies cdp.BrowserContextID) {
	ctx := cdp.WithExecutor(shared, chromedp.FromContext(shared).Browser)
	_ = target.DisposeBrowserContext(cookies).Do(ctx)
}

// report logs all that is known about the tab of a failed test.
func (b *browser) report(number int) {
	b.mu.Lock()
	console := strings.Join(b.console, "\n")
	b.mu.Unlock()
	dir := os.Getenv("DUESTREAM_TEST_SCREENSHOTS")
	if dir == "" {
		dir = filepath.Join(os.TempDir(), "duestream-browser")
	}
	name := fmt.Sprintf("failed-%s-%d", strings.ReplaceAll(b.t.Name(), "/", "-"), number)
	file, err := b.picture(dir, name)
	if err != nil {
		file = "none: " + err.Error()
	}
	l := b.look()
	b.t.Logf("tab %d at its end: %s\n%s\nconsole of tab %d:\n%s\nlog of the dashboard:\n%s\nscreenshot of tab %d: %s",
		number, l.Address, l.Text, number, console, strings.Join(b.rig.log.Lines(""), "\n"), number, file)
}

// picture writes a picture of the whole page, and returns the path of the file.
func (b *browser) picture(dir, name string) (file string, err error) {
	ctx, end := context.WithTimeout(b.ctx, actionTime)
	defer end()
	var picture []byte
	if err := chromedp.Run(ctx, chromedp.FullScreenshot(&picture, 100)); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	file = filepath.Join(dir, name+".png")
	return file, os.WriteFile(file, picture, 0o644)
}

// listen follows what goes on in a page. The log has the violations of the content policy.
func (b *browser) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.traffic.listen(event)
	line, wrong := "", false
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		line, wrong = "exception: "+e.ExceptionDetails.Error(), true
	case *runtime.EventConsoleAPICalled:
		line = fmt.Sprintf("console.%s: %s", e.Type, inJSON(e.Args))
		wrong = e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning || e.Type == runtime.APITypeAssert
	case *log.EventEntryAdded:
		line = fmt.Sprintf("log, %s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL)
		wrong = e.Entry.Level == log.LevelError || e.Entry.Level == log.LevelWarning
	}
	if line == "" {
		return
	}
	b.console = append(b.console, line)
	for _, text := range append(b.expected, networkChanged) {
		wrong = wrong && !strings.Contains(line, text)
	}
	if wrong {
		b.problems = append(b.problems, "a page reports "+line)
	}
}

func inJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// expects allows pages to log errors that contain one of the texts, as "503" while Redis is away.
func (b *browser) expects(texts ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = append(b.expected, texts...)
}

// run runs commands to Chromium.
func (b *browser) run(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, end := context.WithTimeout(b.ctx, actionTime)
	defer end()
	must(b.t, chromedp.Run(ctx, actions...))
}

// ofBrowser runs a command to Chromium that is not about a page.
func (b *browser) ofBrowser(command func(context.Context) error) {
	b.t.Helper()
	b.run(chromedp.ActionFunc(func(ctx context.Context) error {
		return command(cdp.WithExecutor(ctx, chromedp.FromContext(ctx).Browser))
	}))
}

// evaluate evaluates an expression of JavaScript, awaits its promise, and decodes its value.
func (b *browser) evaluate(expression string, into any) error {
	ctx, end := context.WithTimeout(b.ctx, actionTime)
	defer end()
	return chromedp.Run(ctx, chromedp.Evaluate(expression, into,
		func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
}

// eval evaluates an expression on a page that has been loaded; into = nil drops the value.
func (b *browser) eval(expression string, into any) {
	b.t.Helper()
	b.until(func() (bool, string) {
		b.settles()
		err := b.evaluate(expression, into)
		isReplaced := func(text string) bool { return strings.Contains(err.Error(), text) }
		if err != nil && !slices.ContainsFunc(replaced, isReplaced) {
			b.t.Fatalf("%.500s: %v", expression, err)
		}
		return err == nil, fmt.Sprint(err)
	})
}

// replaced are the errors of an expression whose page loads itself again meanwhile.
var replaced = []string{"context was destroyed", "Cannot find context", "navigated or closed"}

// look holds the address and the visible text of a page at one moment.
type look struct {
	Address, Text string
	Ready         bool   // the page is loaded, and its script runs
	Marked        bool   // see browser.follow
	Clicked       string // see guarding
}

// looking is the expression of a look. Some pages have no script: the plain text of a payload.
const looking = `({
	Address: location.href,
	Text: document.body?.innerText ?? "",
	Ready: document.readyState === "complete" && (document.documentElement.dataset.script === "runs" ||
		!document.querySelector('script[src*="app.js"]')),
	Marked: window.marked === true,
	Clicked: window.clicked ?? "",
})`

// look looks at the page. While another page replaces it, the look fails, and shows the error.
func (b *browser) look() look {
	b.t.Helper()
	b.repeatInterrupted()
	var l look
	if err := b.evaluate(looking, &l); err != nil {
		l.Text = err.Error()
	}
	return l
}

// until waits for a condition of the page.
func (b *browser) until(condition func() (ok bool, why string)) {
	b.t.Helper()
	pause, why := time.Millisecond, ""
	for range mostLooks {
		var ok bool
		if ok, why = condition(); ok {
			return
		}
		<-time.After(pause)
		pause = min(2*pause, longestPause)
	}
	b.t.Fatalf("not so after %d looks: %s", mostLooks, why)
}

// settles waits until the page is loaded and its script listens to the keyboard. A page shows its text before that.
func (b *browser) settles() {
	b.t.Helper()
	b.until(func() (bool, string) {
		l := b.look()
		return l.Ready, "the page is not loaded: " + l.Address
	})
}

// sees waits until the page shows a text.
func (b *browser) sees(text string) {
	b.t.Helper()
	b.until(func() (bool, string) {
		l := b.look()
		return l.Ready && strings.Contains(l.Text, text), fmt.Sprintf("%q is not on the page %s", text, l.Address)
	})
}

// lacks waits until the page does not show a text.
func (b *browser) lacks(text string) {
	b.t.Helper()
	b.until(func() (bool, string) {
		l := b.look()
		return l.Ready && !strings.Contains(l.Text, text), fmt.Sprintf("%q is on the page %s", text, l.Address)
	})
}

// isAt waits until the address of the page, without that of the dashboard, is this one.
func (b *browser) isAt(address string) {
	b.t.Helper()
	b.until(func() (bool, string) {
		l := b.look()
		return l.Ready && strings.TrimPrefix(l.Address, b.base) == address, "the page is " + l.Address
	})
}

// isOn waits until the page is the one of a path, whatever its query.
func (b *browser) isOn(page string) {
	b.t.Helper()
	b.until(func() (bool, string) {
		l := b.look()
		address, _, _ := strings.Cut(l.Address, "?")
		return l.Ready && strings.TrimPrefix(address, b.base) == page, "the page is " + l.Address
	})
}

// follow does what leads to another page, and waits for that page.
func (b *browser) follow(leave func()) {
	b.t.Helper()
	b.eval("window.marked = true", nil)
	leave()
	b.until(func() (bool, string) {
		l := b.look()
		return l.Ready && !l.Marked, "no other page after " + l.Address
	})
}

// open opens a page of the dashboard: a path relative to it, such as "queue?queue=orders".
func (b *browser) open(address string) {
	b.t.Helper()
	b.follow(func() { b.navigate(b.base + address) })
}

func (b *browser) navigate(address string) {
	b.t.Helper()
	b.run(chromedp.ActionFunc(func(ctx context.Context) error {
		_, _, _, _, err := page.Navigate(address).Do(ctx) // a look shows that a navigation has failed
		return err
	}))
}

// logIn adds a token for all queues with these verbs, and logs in with it through the login page.
func (b *browser) logIn(verbs ...access.Verb) {
	b.t.Helper()
	b.logInWith(b.rig.token(verbs))
}

// logInWith logs in with the secret of a token.
func (b *browser) logInWith(secret string) {
	b.t.Helper()
	b.open("login")
	b.fill("#token", secret)
	b.click("#login button")
	b.sees("Log out")
}

// text returns the visible text of an element, for which it waits.
func (b *browser) text(selector string) (text string) {
	b.t.Helper()
	b.until(func() (bool, string) {
		var found []string
		b.eval(fmt.Sprintf(`[...document.querySelectorAll(%q)].filter((e) => e.checkVisibility())
			.map((e) => e.innerText ?? e.textContent)`, selector), &found)
		if len(found) > 0 {
			text = found[0]
		}
		return len(found) > 0, selector + " is not visible"
	})
	return text
}

// count returns how many elements the page has for a selector.
func (b *browser) count(selector string) (n int) {
	b.t.Helper()
	b.eval(fmt.Sprintf("document.querySelectorAll(%q).length", selector), &n)
	return n
}

// counts waits until the page has a number of elements for a selector.
func (b *browser) counts(selector string, want int) {
	b.t.Helper()
	b.until(func() (bool, string) {
		n := b.count(selector)
		return n == want, fmt.Sprintf("%s: %d elements, want %d", selector, n, want)
	})
}

// cookie returns a cookie of the tab.
func (b *browser) cookie(name string) *network.Cookie {
	b.t.Helper()
	var found *network.Cookie
	b.run(chromedp.ActionFunc(func(ctx context.Context) error {
		all, err := network.GetCookies().WithURLs([]string{b.base}).Do(ctx)
		for _, c := range all {
			if c.Name == name {
				found = c
			}
		}
		return err
	}))
	if found == nil {
		b.t.Fatalf("no cookie %s", name)
	}
	return found
}

// hide hides the tab, as another tab in front of it does, or shows it again.
func (b *browser) hide(hidden bool) {
	b.t.Helper()
	state := cdpbrowser.WindowStateNormal
	if hidden {
		state = cdpbrowser.WindowStateMinimized
	}
	b.run(emulation.SetFocusEmulationEnabled(!hidden), chromedp.ActionFunc(func(ctx context.Context) error {
		window, _, err := cdpbrowser.GetWindowForTarget().Do(ctx)
		if err != nil {
			return err
		}
		return cdpbrowser.SetWindowBounds(window, &cdpbrowser.Bounds{WindowState: state}).Do(ctx)
	}))
	redistest.Eventually(b.t, patience, func() (bool, string) {
		var is bool
		b.eval("document.hidden", &is)
		return is == hidden, fmt.Sprint("the page is hidden: ", is)
	})
}

// downloads clicks on an element, and returns the file that the browser then stores.
func (b *browser) downloads(selector string) []byte {
	b.t.Helper()
	dir := b.t.TempDir()
	b.ofBrowser(func(ctx context.Context) error {
		return cdpbrowser.SetDownloadBehavior(cdpbrowser.SetDownloadBehaviorBehaviorAllow).WithBrowserContextID(b.cookies).
			WithDownloadPath(dir).Do(ctx)
	})
	b.clickOnly(selector)
	var content []byte
	b.until(func() (bool, string) {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		must(b.t, err)
		if len(files) != 1 || strings.HasSuffix(files[0], ".crdownload") { // its name while it is not complete
			return false, fmt.Sprintf("files of the download: %q", files)
		}
		content, err = os.ReadFile(files[0])
		must(b.t, err)
		return true, ""
	})
	return content
}
