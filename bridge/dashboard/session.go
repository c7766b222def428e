package dashboard

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge/access"
)

const (
	sessionLength = 12 * time.Hour // of a login; the server refuses an older one

	maxLoginBytes = 8 << 10         // of the form, which anybody may send
	loginTimeout  = 5 * time.Second // of sending it
)

// errLogin: the request has no token, or the token is unknown, expired or revoked.
var errLogin = errors.New("log in first")

// grant returns the grant of the token in the request's cookie. errLogin: there is none that is valid.
func (d *Dashboard) grant(r *http.Request) (*access.Grant, error) {
	_, g, err := d.session(r)
	return g, err
}

// maxSessions limits the cookies of one name whose tokens are looked up for a request.
const maxSessions = 4

// session returns the secret of the token in the request's cookie, and its grant. Another application may have planted
// a cookie of this name. A cookie without a valid token is ignored. Two different valid tokens under one name make the
// viewer log in, because either cookie may be the foreign one.
func (d *Dashboard) session(r *http.Request) (secret string, g *access.Grant, err error) {
	for _, name := range sessionNames {
		if name == sessionCookie && isTLS(r) {
			continue // a login over TLS has another name
		}
		secret, g, err = d.sessionNamed(r, name)
		if err != nil || g != nil {
			return secret, g, err
		}
	}
	return "", nil, errLogin
}

// sessionNamed is session for the cookies of one name. The grant is nil if none of them has a valid token.
func (d *Dashboard) sessionNamed(r *http.Request, name string) (secret string, g *access.Grant, err error) {
	checked := 0
	for _, c := range r.CookiesNamed(name) {
		text, ok := sessionSecret(c.Value, time.Now())
		if !ok || checked == maxSessions {
			continue
		}
		checked++
		one, err := d.cfg.Access.Authenticate(r.Context(), text)
		switch {
		case errors.Is(err, access.ErrRefused):
		case err != nil:
			return "", nil, err
		case g != nil && text != secret:
			return "", nil, errLogin
		default:
			secret, g = text, one
		}
	}
	return secret, g, nil
}

// hasLogin reports whether a request has a cookie of a login that is not too old.
func hasLogin(r *http.Request) bool {
	return slices.ContainsFunc(sessionNames, func(name string) bool {
		return slices.ContainsFunc(r.CookiesNamed(name), func(c *http.Cookie) bool {
			secret, ok := sessionSecret(c.Value, time.Now())
			return ok && secret != ""
		})
	})
}

// isTLS reports whether the browser speaks TLS, to this process or to a proxy in front of it.
func isTLS(r *http.Request) bool {
	return r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
}

// isPrivate reports whether nobody else can read what the browser sends: it speaks TLS, or is on this machine.
func isPrivate(r *http.Request) bool {
	if isTLS(r) {
		return true
	}
	if isForwarded(r.Header) || isOfUnsafePage(r) { // the browser speaks to a proxy, without TLS
		return false
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && peer.Addr().Unmap().IsLoopback() && isThisMachine(r.Host)
}

// proxyHeaders are request headers that proxies add. Headers that begin with X-Forwarded- count as well. The names are
// in the form of http.CanonicalHeaderKey.
var proxyHeaders = []string{"Forwarded", "Via", "X-Forwarded", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip",
	"X-Original-Forwarded-For", "True-Client-Ip", "Cf-Connecting-Ip", "Fly-Client-Ip", "Cdn-Loop"}

// isForwarded reports whether a proxy forwarded the request.
func isForwarded(h http.Header) bool {
	for name := range h {
		if slices.Contains(proxyHeaders, name) || strings.HasPrefix(name, "X-Forwarded-") {
			return true
		}
	}
	return false
}

// isOfUnsafePage reports whether the browser's headers show that others may read its requests, even if a proxy hides
// that. A browser sends Sec-Fetch-Site only with TLS or to its own machine. The Origin names the page of a form.
func isOfUnsafePage(r *http.Request) bool {
	origin, err := url.Parse(r.Header.Get("Origin"))
	if err != nil || origin.Scheme == "http" && !isThisMachine(origin.Host) {
		return true
	}
	isBrowser := strings.HasPrefix(r.UserAgent(), "Mozilla/")
	return isBrowser && r.Header.Get("Sec-Fetch-Site") == "" && origin.Scheme != "https"
}

// isThisMachine reports whether a browser that asks for a host, with or without a port, asks its own machine. Another
// name belongs to a proxy on this machine, or to a site that had its name point here.
func isThisMachine(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	address, err := netip.ParseAddr(host)
	return err == nil && address.Unmap().IsLoopback() || host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// loginView is the data of the login page.
type loginView struct {
	Next    string // page to show after the login
	Refused bool   // the token was refused
	Ended   bool   // the browser still has the cookie of a login that is over
	Private bool   // the connection may carry a token

	ByAddress bool // the page sends the token behind # of its address by itself
}

func (d *Dashboard) showLogin(w http.ResponseWriter, r *http.Request) {
	view := loginView{Next: safeNext(r.URL.Query().Get("next")), Private: isPrivate(r)}
	if _, err := d.grant(r); errors.Is(err, errLogin) {
		view.Ended = slices.ContainsFunc(sessionNames, func(name string) bool { return len(r.CookiesNamed(name)) > 0 })
		view.ByAddress = d.cfg.LoginByAddress // else the address would replace the login of a viewer
	}
	d.renderLogin(w, http.StatusOK, view)
}

// login checks the token of the form, and stores it in a cookie that no script can read.
func (d *Dashboard) login(w http.ResponseWriter, r *http.Request) {
	_ = parseForm(w, r, maxLoginBytes, loginTimeout) // a form that was not read has no token
	view := loginView{Next: safeNext(r.PostFormValue("next")), Private: isPrivate(r)}
	if !view.Private {
		d.renderLogin(w, http.StatusForbidden, view)
		return
	}
	secret := strings.TrimSpace(r.PostFormValue("token"))
	g, err := d.cfg.Access.Authenticate(r.Context(), secret)
	switch {
	case errors.Is(err, access.ErrRefused):
		view.Refused = true
		d.logRefusal(r)
		d.renderLogin(w, http.StatusUnauthorized, view)
		return
	case err != nil:
		d.fail(w, r, nil, err)
		return
	}
	d.cfg.Access.Audit(g, "dashboard.login", "")
	dropPlanted(w, r, view.Next)
	http.SetCookie(w, newSession(r, secret))
	redirect(w, view.Next)
}

// refusalsEvery is the time in which the log gets one line about refused logins at most.
const refusalsEvery = time.Second

// logRefusal logs a login, or a cookie of one, that was refused, and how many others were refused since the last line.
func (d *Dashboard) logRefusal(r *http.Request) {
	d.refusals.mu.Lock()
	defer d.refusals.mu.Unlock()
	d.refusals.n++
	if time.Since(d.refusals.logged) < refusalsEvery {
		return
	}
	d.log.Warn("a login to the dashboard was refused", slog.String("peer", r.RemoteAddr),
		slog.Int("count", d.refusals.n))
	d.refusals.n, d.refusals.logged = 0, time.Now()
}

// refusals counts the refused logins since the last line of the log.
type refusals struct {
	mu     sync.Mutex
	n      int
	logged time.Time
}

// answerSession tells the script of a page whether the viewer is still logged in. It reads less than any page.
func (d *Dashboard) answerSession(w http.ResponseWriter, r *http.Request) {
	if q := d.begin(w, r); q != nil {
		w.WriteHeader(http.StatusNoContent)
	}
}

func (d *Dashboard) logout(w http.ResponseWriter, r *http.Request) {
	dropSessions(w, r)
	redirect(w, "login")
}

// redirect sends the browser to a page of the dashboard with a GET request. http.Redirect would make the path absolute.
func redirect(w http.ResponseWriter, page string) {
	w.Header().Set("Location", page)
	w.WriteHeader(http.StatusSeeOther)
}

// safeNext returns a page of the dashboard to show after a login: next if it names one, else the overview.
func safeNext(next string) string {
	name, _, _ := strings.Cut(next, "?")
	for _, p := range pages {
		if p.path == name && name != "" {
			return next
		}
	}
	return "./"
}
