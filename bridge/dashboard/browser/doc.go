// Package browser has the tests of the dashboard in a real browser, and no code. They use Debian's chromium through
// DevTools (chromedp), and axe-core for the accessibility of pages. They run the dashboard as its users do: below
// /ops/queues/, behind a reverse proxy with TLS, against a real Redis, with a bridge and workers. All tests share one
// Chromium; each tab has a window and cookies of its own.
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
//	b.press("g")                                         // keys, by their names in the DOM
//	b.follow(func() { b.press("o") })                    // waits for the page to which a key leads; b.enter() is Enter
//	b.view("queue", "queue?queue=orders", "order-42")    // the weight of the first load; then looks
//	b.looks("queue")                                     // axe, width and pictures: light, dark, desk, phone
//
// A helper waits for a state of the page, never for a time. It fails after a fixed number of looks at the page. Looks
// are slower on a busy machine, so the helper then waits longer. The helpers follow these rules:
//
//   - an action on a page, such as a key, waits until the page is loaded and its script runs;
//   - a click waits until the element has kept its place for two looks. An update may still move the page. The page
//     then does not see the click on another element, and the helper clicks again;
//   - before an action that leads to another page, the present one is marked. The helper waits for a page without the
//     mark, because the present one may hold the text for which the test waits;
//   - a container that starts or stops on this machine changes its network, and Chromium then ends all requests
//     (net::ERR_NETWORK_CHANGED). The page of a GET request is then loaded again.
//
// A test fails at its end if a page logged an error, broke the content policy, or threw an exception; browser.expects
// lists the exceptions to that. A failed test prints, for each of its tabs, the page, the console, the log of the
// dashboard, and the path of a screenshot. TestABrowserTestsEveryPageAndAction of package dashboard fails if no test
// here names a page or an action.
//
// TestDemoOfAShop records pages of a shop as files, for the site of the documents (make site-demo).
//
// DUESTREAM_TEST_SCREENSHOTS names a directory for pictures of all views. Without it, only failed tests make them. The
// tests need a program chromium or google-chrome on the PATH: apt-get install --no-install-recommends chromium.
package browser
