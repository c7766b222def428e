package browser

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// maxWeight is how many bytes the first load of a page may transfer: with all its files, and nothing in a cache.
const maxWeight = 150 << 10

// networkChanged is the error of a request that runs while the machine gets or loses a network interface, which happens
// when a container starts or stops.
const networkChanged = "net::ERR_NETWORK_CHANGED"

// traffic counts the bytes that the page of a tab loads.
type traffic struct {
	document    *network.Request             // the last request for a page
	interrupted bool                         // a change of the network has interrupted the page
	types       map[network.RequestID]string // of the requests
	bytes       int64                        // transferred since the count began, without streams of updates
}

func (t *traffic) listen(event any) {
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if t.types == nil {
			t.types = map[network.RequestID]string{}
		}
		t.types[e.RequestID] = e.Type.String()
		if e.Type == network.ResourceTypeDocument {
			t.document, t.interrupted = e.Request, false
		}
	case *network.EventLoadingFinished:
		if t.types[e.RequestID] != network.ResourceTypeEventSource.String() {
			t.bytes += int64(e.EncodedDataLength)
		}
	case *network.EventLoadingFailed:
		needed := e.Type == network.ResourceTypeDocument || e.Type == network.ResourceTypeScript ||
			e.Type == network.ResourceTypeStylesheet
		t.interrupted = t.interrupted || needed && e.ErrorText == networkChanged
	}
}

// repeatInterrupted loads the page again if a change of the network has interrupted it.
func (b *browser) repeatInterrupted() {
	b.t.Helper()
	b.mu.Lock()
	interrupted, document := b.traffic.interrupted, b.traffic.document
	b.traffic.interrupted = false
	b.mu.Unlock()
	if !interrupted {
		return
	}
	if document.Method != "GET" { // to send the form again could repeat its change
		b.t.Fatalf("this machine got or lost a network interface while a form was sent to %s", document.URL)
	}
	b.t.Logf("the network has changed, so %s is loaded again", document.URL)
	b.navigate(document.URL)
}

// weights are the bytes that the first load of each view has transferred.
var weights = struct {
	sync.Mutex
	of map[string]int64
}{of: map[string]int64{}}

// printWeights prints the table of weights, the heaviest view first.
func printWeights() {
	weights.Lock()
	defer weights.Unlock()
	names := make([]string, 0, len(weights.of))
	for name := range weights.of {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return int(weights.of[b] - weights.of[a]) })
	for i, name := range names {
		if i == 0 {
			fmt.Printf("bytes of the first load of each view, at most %d:\n", maxWeight)
		}
		fmt.Printf("%7d %s\n", weights.of[name], name)
	}
}

// weighs opens a page with nothing in the cache, and fails the test if too many bytes were transferred.
func (b *browser) weighs(name, address string) {
	b.t.Helper()
	b.run(network.SetCacheDisabled(true))
	b.mu.Lock()
	b.traffic.bytes = 0
	b.mu.Unlock()
	b.open(address)
	b.mu.Lock()
	weight := b.traffic.bytes
	b.mu.Unlock()
	b.run(network.SetCacheDisabled(false))
	if weight == 0 || weight > maxWeight {
		b.t.Errorf("%s: the first load takes %d bytes, more than %d", name, weight, maxWeight)
	}
	weights.Lock()
	defer weights.Unlock()
	weights.of[name] = weight
}

// view opens a page with nothing in the cache, waits for a text, and looks at the page. Its weight and its pictures
// have the name.
func (b *browser) view(name, address, text string) {
	b.t.Helper()
	b.weighs(name, address)
	b.sees(text)
	b.looks(name)
}

// looks shows the page light and dark, on a desk and on a phone. Axe must find no violation in either theme and on
// either width, and the page must not be wider than the window. If DUESTREAM_TEST_SCREENSHOTS names a directory, a
// picture is made: <name>-<theme>-<width>.png.
func (b *browser) looks(name string) {
	b.t.Helper()
	for _, l := range []struct {
		dark  bool
		width int64
		rules string // of axe: a theme changes nothing but colours, and a width no colours
	}{{false, deskWidth, allRules}, {true, deskWidth, colours}, {true, phoneWidth, layout}, {false, phoneWidth, ""}} {
		b.show(l.dark, l.width)
		at := fmt.Sprintf("%s-%s-%d", name, b.theme(), b.width)
		var wide int64
		b.eval("document.documentElement.scrollWidth", &wide)
		if wide > b.width {
			b.t.Errorf("%s: the page is %d pixels wide", at, wide)
		}
		if dir := os.Getenv("DUESTREAM_TEST_SCREENSHOTS"); dir != "" {
			_, err := b.picture(dir, at)
			must(b.t, err)
		}
		if l.rules == "" {
			continue
		}
		for _, violation := range b.axe(l.rules) {
			b.t.Errorf("%s: axe: %s", at, violation)
		}
	}
	b.show(false, deskWidth)
}

// frameTree reads the frames of the page.
func frameTree(into **page.FrameTree) chromedp.Action {
	return chromedp.ActionFunc(func(ctx context.Context) (err error) {
		*into, err = page.GetFrameTree().Do(ctx)
		return err
	})
}

// show sets the theme and the width of the page: deskWidth or phoneWidth.
func (b *browser) show(dark bool, width int64) {
	b.t.Helper()
	b.dark, b.width = dark, width
	b.emulate()
	b.until(func() (bool, string) {
		var shown bool
		b.eval(fmt.Sprintf(`innerWidth === %d && matchMedia("(prefers-color-scheme: %s)").matches`, width, b.theme()), &shown)
		return shown, "the page has another width or theme"
	})
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

//go:embed testdata/axe-4.14.1.min.js
var axeSource string

// Options of axe.
const (
	allRules = `{resultTypes: ["violations"]}`
	colours  = `{resultTypes: ["violations"], runOnly: ["color-contrast", "link-in-text-block"]}`
	layout   = `{resultTypes: ["violations"], rules: {"color-contrast": {enabled: false}}}`
)

// axe returns the violations that axe-core finds on the page, each with its elements.
func (b *browser) axe(rules string) (violations []string) {
	b.t.Helper()
	// DevTools may evaluate code that the content policy forbids to pages. The source and the call of axe are one
	// expression, so that both run on the same page even if the page loads itself again.
	b.eval(fmt.Sprintf(`%s;axe.run(document, %s).then(result => result.violations.map(v =>
		v.id + ": " + v.help + "\n" + v.nodes.map(n => "  " + n.html + "\n  " + n.failureSummary).join("\n")))`,
		axeSource, rules), &violations)
	return violations
}
