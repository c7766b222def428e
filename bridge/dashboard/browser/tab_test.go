package browser

import (
	"context"
	_ "embed"
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
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
)

const (
	// patience is how long a page may take. On a busy machine, redistest.Eventually waits for several times as long.
	patience = 10 * time.Second
	runTime  = time.Minute // limit of one action

	deskWidth, phoneWidth = 1440, 390
	height                = 900
)

// browser is a tab with cookies of its own. Its methods end the test at an error.
type browser struct {
	t    *testing.T
	rig  *rig
	ctx  context.Context
	base string // address of the dashboard

	dark  bool
	width int64

	mu       sync.Mutex
	problems []string // what pages logged
	expected []string
}

// browser opens a tab, which finds the dashboard behind the proxy that strips its path.
func (r *rig) browser() *browser { return r.browserAt(r.stripping) }

// browserAt opens a tab, which finds the dashboard at one of the addresses of the rig.
func (r *rig) browserAt(base string) *browser {
	r.T.Helper()
	shared, err := chromium()
	must(r.T, err)
	id, dispose, err := newWindow(shared)
	must(r.T, err)
	ctx, end := chromedp.NewContext(shared, chromedp.WithTargetID(id))
	b := &browser{t: r.T, rig: r, ctx: ctx, base: base, width: deskWidth}
	chromedp.ListenTarget(ctx, b.listen)
	must(r.T, chromedp.Run(ctx, log.Enable()))
	b.emulate()
	r.T.Cleanup(func() {
		defer dispose()
		defer end()
		b.mu.Lock()
		problems := slices.Clone(b.problems) // shown waits for a loop that takes the lock, too
		b.mu.Unlock()
		for _, one := range problems {
			r.T.Error(one)
		}
		if r.T.Failed() {
			r.T.Logf("the page at its end is %s", b.shown())
		}
	})
	return b
}

// newWindow opens a window with cookies of its own. dispose closes it.
func newWindow(shared context.Context) (id target.ID, dispose func(), err error) {
	ctx := cdp.WithExecutor(shared, chromedp.FromContext(shared).Browser)
	cookies, err := target.CreateBrowserContext().WithDisposeOnDetach(true).Do(ctx)
	if err != nil {
		return "", nil, err
	}
	dispose = func() { _ = target.DisposeBrowserContext(cookies).Do(ctx) }
	id, err = target.CreateTarget("about:blank").WithBrowserContextID(cookies).WithNewWindow(true).Do(ctx)
	if err != nil {
		dispose()
	}
	return id, dispose, err
}

// listen collects what goes wrong in a page. The log has the violations of the content policy.
func (b *browser) listen(event any) {
	problem := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		problem = "exception: " + e.ExceptionDetails.Error()
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning || e.Type == runtime.APITypeAssert {
			problem = "console: " + inJSON(e.Args)
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError || e.Entry.Level == log.LevelWarning {
			problem = fmt.Sprintf("log: %s %s", e.Entry.Text, e.Entry.URL)
		}
	}
	if problem == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, text := range append(b.expected, networkChanged) {
		if strings.Contains(problem, text) {
			return
		}
	}
	b.problems = append(b.problems, "a page reports "+problem)
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

// nodeReplaced is the error of an action whose element an update of the page has replaced meanwhile. The action was not
// done.
const nodeReplaced = "No node with given id found"

// run runs actions of chromedp.
func (b *browser) run(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, end := context.WithTimeout(b.ctx, runTime)
	defer end()
	err := chromedp.Run(ctx, actions...)
	for err != nil && strings.Contains(err.Error(), nodeReplaced) {
		err = chromedp.Run(ctx, actions...)
	}
	if err != nil {
		b.t.Fatalf("%v\nthe page is %s", err, b.shown())
	}
}

// shown returns the address and the visible text of the page.
func (b *browser) shown() string {
	ctx, end := context.WithTimeout(b.ctx, 5*time.Second)
	defer end()
	var text string
	err := chromedp.Run(ctx, chromedp.Evaluate(`location.href + "\n" + (document.body?.innerText ?? "")`, &text))
	if err != nil {
		return err.Error()
	}
	return text
}

// networkChanged is the error of a request that runs while the machine gets or loses a network interface, which happens
// when a container starts or stops.
const networkChanged = "net::ERR_NETWORK_CHANGED"

// open opens a page of the dashboard: a path relative to it, such as "queue?queue=orders".
func (b *browser) open(page string) {
	b.t.Helper()
	redistest.Eventually(b.t, time.Minute, func() (bool, string) {
		ctx, end := context.WithTimeout(b.ctx, runTime)
		defer end()
		err := chromedp.Run(ctx, chromedp.Navigate(b.base+page))
		if err != nil && !strings.Contains(err.Error(), networkChanged) {
			b.t.Fatalf("%v\nthe page is %s", err, b.shown())
		}
		return err == nil, fmt.Sprint(err)
	})
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

// sees waits until the page shows a text.
func (b *browser) sees(text string) {
	b.t.Helper()
	redistest.Eventually(b.t, patience, func() (bool, string) {
		shown := b.shown()
		return strings.Contains(shown, text), fmt.Sprintf("no %q on the page %s", text, shown)
	})
}

// listens waits until the script of the page listens to the keyboard: a page shows its text before that.
func (b *browser) listens() {
	b.t.Helper()
	redistest.Eventually(b.t, patience, func() (bool, string) {
		return b.count("html[data-script]") == 1, "the script of the page does not run"
	})
}

// lacks waits until the page does not show a text.
func (b *browser) lacks(text string) {
	b.t.Helper()
	redistest.Eventually(b.t, patience, func() (bool, string) {
		shown := b.shown()
		return !strings.Contains(shown, text), fmt.Sprintf("%q is on the page %s", text, shown)
	})
}

// click waits until an element is visible, and clicks on it. The selector is of CSS.
func (b *browser) click(selector string) {
	b.t.Helper()
	b.run(chromedp.Click(selector, chromedp.ByQuery, chromedp.NodeVisible))
}

// fill replaces the text of a field by typing.
func (b *browser) fill(selector, text string) {
	b.t.Helper()
	b.set(selector, "")
	if text != "" {
		b.run(chromedp.SendKeys(selector, text, chromedp.ByQuery))
	}
}

// set sets the value of a field without typing, as a date picker does, and tells the page. Of a select, it chooses.
func (b *browser) set(selector, value string) {
	b.t.Helper()
	b.run(chromedp.WaitVisible(selector, chromedp.ByQuery))
	b.eval(fmt.Sprintf(`(field => {
		field.value = %q;
		for (const name of ["input", "change"]) field.dispatchEvent(new Event(name, {bubbles: true}));
	})(document.querySelector(%q))`, value, selector), nil)
}

// namedKeys are keys that type no character.
var namedKeys = map[string]string{"Enter": kb.Enter, "Escape": kb.Escape, "Tab": kb.Tab, "Space": " ",
	"Backspace": kb.Backspace, "ArrowUp": kb.ArrowUp, "ArrowDown": kb.ArrowDown, "ArrowLeft": kb.ArrowLeft,
	"ArrowRight": kb.ArrowRight, "Home": kb.Home, "End": kb.End}

// press presses keys: characters, the names of namedKeys, and "Shift+Tab".
func (b *browser) press(keys ...string) {
	b.t.Helper()
	for _, key := range keys {
		plain, shift := strings.CutPrefix(key, "Shift+")
		if name, ok := namedKeys[plain]; ok {
			plain = name
		}
		for _, r := range plain {
			b.run(chromedp.ActionFunc(func(ctx context.Context) error { return pressOne(ctx, r, shift) }))
		}
	}
}

// pressOne presses one key. A page that cancels the event of the key gets no character, as with a real keyboard.
// chromedp.KeyEvent sends the character in any case.
func pressOne(ctx context.Context, key rune, shift bool) error {
	events := kb.Encode(key)
	down, up := events[0], events[len(events)-1]
	if len(events) == 3 {
		down.Text, down.UnmodifiedText = events[1].Text, events[1].UnmodifiedText
	}
	if shift {
		down.Modifiers |= input.ModifierShift
		up.Modifiers |= input.ModifierShift
	}
	if err := down.Do(ctx); err != nil {
		return err
	}
	return up.Do(ctx)
}

// text returns the visible text of an element, for which it waits.
func (b *browser) text(selector string) (text string) {
	b.t.Helper()
	b.run(chromedp.Text(selector, &text, chromedp.ByQuery, chromedp.NodeVisible))
	return text
}

// count returns how many elements the page has for a selector.
func (b *browser) count(selector string) (n int) {
	b.t.Helper()
	b.eval(fmt.Sprintf("document.querySelectorAll(%q).length", selector), &n)
	return n
}

// eval evaluates an expression of JavaScript, awaits its promise, and decodes its value; into = nil drops the value.
func (b *browser) eval(expression string, into any) {
	b.t.Helper()
	b.run(chromedp.Evaluate(expression, into, func(p *runtime.EvaluateParams) *runtime.EvaluateParams {
		return p.WithAwaitPromise(true)
	}))
}

// show sets the theme and the width of the page: deskWidth or phoneWidth.
func (b *browser) show(dark bool, width int64) {
	b.t.Helper()
	b.dark, b.width = dark, width
	b.emulate()
}

func (b *browser) emulate() {
	b.t.Helper()
	b.run(
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: b.theme()}, {Name: "prefers-reduced-motion", Value: "reduce"},
		}),
		emulation.SetDeviceMetricsOverride(b.width, height, 1, false),
	)
}

func (b *browser) theme() string {
	if b.dark {
		return "dark"
	}
	return "light"
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
	b.run(chromedp.ActionFunc(func(ctx context.Context) error {
		window, _, err := cdpbrowser.GetWindowForTarget().Do(ctx)
		if err != nil {
			return err
		}
		return cdpbrowser.SetWindowBounds(window, &cdpbrowser.Bounds{WindowState: state}).Do(ctx)
	}))
}

// look is an appearance of a page: its theme and its width.
type look struct {
	dark  bool
	width int64
}

// looks shows the page light and dark, on a desk and on a phone. Each time axe must find no violation, the page must
// not be wider than the window, and a screenshot is made: <name>-<theme>-<width>.png.
func (b *browser) looks(name string) {
	b.t.Helper()
	for _, l := range []look{{false, deskWidth}, {true, deskWidth}, {false, phoneWidth}, {true, phoneWidth}} {
		b.show(l.dark, l.width)
		at := fmt.Sprintf("%s-%s-%d", name, b.theme(), b.width)
		var wide int64
		b.eval("new Promise(r => requestAnimationFrame(() => r(document.documentElement.scrollWidth)))", &wide)
		if wide > b.width {
			b.t.Errorf("%s: the page is %d pixels wide", at, wide)
		}
		b.screenshot(at)
		for _, violation := range b.axe() {
			b.t.Errorf("%s: axe: %s", at, violation)
		}
	}
	b.show(false, deskWidth)
}

// screenshot writes <name>.png of the whole page into the directory of DUESTREAM_TEST_SCREENSHOTS, if that is set.
func (b *browser) screenshot(name string) {
	b.t.Helper()
	dir := os.Getenv("DUESTREAM_TEST_SCREENSHOTS")
	if dir == "" {
		return
	}
	var picture []byte
	b.run(chromedp.FullScreenshot(&picture, 100))
	must(b.t, os.MkdirAll(dir, 0o755))
	must(b.t, os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o644))
}

//go:embed testdata/axe-4.14.1.min.js
var axeSource string

// axe returns the violations that axe-core finds on the page, each with its elements.
func (b *browser) axe() (violations []string) {
	b.t.Helper()
	var loaded bool
	if b.eval("typeof axe === 'object'", &loaded); !loaded {
		b.run(chromedp.Evaluate(axeSource, nil)) // DevTools may evaluate what the content policy forbids to pages
	}
	b.eval(`axe.run(document, {resultTypes: ["violations"]}).then(result => result.violations.map(v =>
		v.id + ": " + v.help + "\n" + v.nodes.map(n => "  " + n.html + "\n  " + n.failureSummary).join("\n")))`, &violations)
	return violations
}
