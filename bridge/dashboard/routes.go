package dashboard

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/duestream/duestream/bridge/access"
)

// page is a view. Its template is templates/<template>.html, which defines "content".
type page struct {
	path     string // "" is the overview
	title    string
	template string

	// show reads the data of the page. The request has a valid token, which may inspect at least one queue. If the query
	// names a queue, the token may inspect that queue.
	show func(*request) (any, error)

	// live returns the part of the page that is kept up to date; nil = the page does not change by itself.
	live func(*request) (*live, error)
}

// action is a change. A form posts to its path. The viewer's token must allow one of the verbs on the form's queue.
type action struct {
	path  string // do-<name>
	verbs []access.Verb
	// allQueues: the action is about no queue or about all, so the token must allow the verb on all queues.
	allQueues bool
	// form is the path of the page that has the action's form. After an error the page is shown again: its show finds the
	// typed values in request.query, and its template shows the error with "faults" and "fault". "" = the error has a page
	// of its own.
	form string
	// payload: the form may hold a payload. Other forms are at most maxActionBytes.
	payload bool
	// manyQueues: the form names no queue or several, and do checks the verb on each queue that it changes.
	manyQueues bool
	// do makes the change, and returns what to tell the viewer. The form has been parsed.
	do func(*request) (done, error)
}

// route is a request that writes its own answer, such as a stream or a download. The request has a valid token. If its
// query names a queue, the token may inspect that queue. A POST route has the same protection as an action, but it
// changes nothing.
type route struct {
	method, path string
	serve        func(*request) error // an error means that nothing was written
}

// done is the outcome of an action.
type done struct {
	notice string // a sentence for the viewer
	page   string // where to go, relative; "" = to the page of the form
	// preview, if not nil, shows the page action.form again, with the typed values. Its show finds the preview in
	// request.preview. Nothing was changed.
	preview any
	// shown, if not nil, shows the page action.form after the change. Its show finds the value in request.preview. It is
	// for a secret, which must not be in the address or in a cookie.
	shown any
}

// section is a part of the dashboard: pages and actions about one subject, and its entries of the navigation.
type section struct {
	nav     []navItem
	pages   []page
	actions []action
	routes  []route
}

// navItem is an entry of the navigation.
type navItem struct {
	Path, Title string // path of a page
	Key         string // pressed after g, it opens the page
	AllQueues   bool   // the page is for tokens that may inspect all queues
}

// Href returns the relative address of the page.
func (n navItem) Href() string {
	if n.Path == "" {
		return "./"
	}
	return n.Path
}

// navigation, pages, actions and routes are those of all sections, in the order of the navigation. init fills them,
// because functions of the sections refer to them.
var (
	navigation []navItem
	pages      []page
	actions    []action
	routes     []route
)

func init() {
	for _, s := range []section{
		overviewSection(), queueSection(), searchSection(), jobsSection(), messageSection(), deadSection(),
		recurrencesSection(), callbacksSection(), tokensSection(), serversSection(),
	} {
		navigation = append(navigation, s.nav...)
		pages = append(pages, s.pages...)
		actions = append(actions, s.actions...)
		routes = append(routes, s.routes...)
	}
}

// router answers the requests by path and method. Unlike an http.ServeMux it never redirects: a redirect to a clean
// path would have to name the path of the dashboard, which a proxy may hide.
type router struct {
	dashboard *Dashboard
	handlers  map[string]map[string]http.HandlerFunc // by path and method
}

func (t router) handle(method, path string, h http.HandlerFunc) {
	if t.handlers[path] == nil {
		t.handlers[path] = map[string]http.HandlerFunc{}
	}
	t.handlers[path][method] = h
}

func (t router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/assets/") {
		serveAsset(w, r)
		return
	}
	methods, ok := t.handlers[r.URL.Path]
	if !ok {
		t.dashboard.fail(w, r, nil, errNoPage)
		return
	}
	h, ok := methods[r.Method]
	if !ok && r.Method == http.MethodHead {
		h, ok = methods[http.MethodGet]
	}
	if !ok {
		w.Header().Set("Allow", strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
		t.dashboard.fail(w, r, nil, errMethod)
		return
	}
	h(w, r)
}

// pageOf returns the page of an action's form, if it needs no parameters; else the overview.
func pageOf(a action) string {
	if slices.ContainsFunc(navigation, func(n navItem) bool { return n.Path == a.form }) {
		return a.form
	}
	return "./"
}

// newRouter returns the handler of all routes.
func (d *Dashboard) newRouter() http.Handler {
	t := router{d, map[string]map[string]http.HandlerFunc{}}
	for _, p := range pages {
		t.handle(http.MethodGet, "/"+p.path, func(w http.ResponseWriter, r *http.Request) { d.answerPage(w, r, p) })
		if p.live != nil {
			t.handle(http.MethodGet, "/live-"+p.template, func(w http.ResponseWriter, r *http.Request) {
				d.answerLive(w, r, p)
			})
		}
	}
	for _, a := range actions {
		if a.form != "" { // after a change that shows its form again, the address bar has the path of the action
			t.handle(http.MethodGet, "/"+a.path, func(w http.ResponseWriter, _ *http.Request) { redirect(w, pageOf(a)) })
		}
		t.handle(http.MethodPost, "/"+a.path, func(w http.ResponseWriter, r *http.Request) { d.answerAction(w, r, a) })
	}
	for _, one := range routes {
		t.handle(one.method, "/"+one.path, func(w http.ResponseWriter, r *http.Request) { d.answerRoute(w, r, one) })
	}
	t.handle(http.MethodGet, "/session", d.answerSession)
	t.handle(http.MethodGet, "/login", d.showLogin)
	t.handle(http.MethodPost, "/login", d.login)
	t.handle(http.MethodPost, "/logout", d.logout)
	return t
}
