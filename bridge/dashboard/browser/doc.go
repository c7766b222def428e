// Package browser has the tests of the dashboard in a real browser, and no code. They use Debian's chromium through
// DevTools (chromedp), and axe-core for the accessibility of pages. They run the dashboard as its users do: below
// /ops/queues/, behind a reverse proxy with TLS, against a real Redis, with a bridge and workers.
//
// A test is a few lines:
//
//	r := newRig(t)                                       // a prefix of the shared Redis, a dashboard, a proxy
//	r.send("orders", "order-42", "hello", bridge.In(time.Hour))
//	b := r.browser()                                     // a tab with no cookies, 1440 pixels wide, light
//	b.logIn("operate")                                   // with a new token for all queues
//	b.open("queue?queue=orders")                         // paths are relative to the dashboard
//	b.sees("order-42")                                   // waits until the page shows the text
//	b.click(`button[name="pause"]`)                      // waits for the element; then for the page that follows
//	b.press("g", "o")                                    // keys, by their names in the DOM
//	b.looks("queue")                                     // axe, width and screenshots: light, dark, desk, phone
//
// Each helper waits for what it needs and ends the test if that does not happen. A test fails at its end if a page
// logged an error, broke the content policy, or threw an exception; browser.expects lists the exceptions to that.
//
// DUESTREAM_TEST_SCREENSHOTS names a directory for screenshots. Without it, none are made. The tests need a program
// chromium or google-chrome on the PATH: apt-get install --no-install-recommends chromium.
package browser
