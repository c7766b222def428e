package dashboard

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/access"
)

const (
	sessionCookie = "duestream_session" // holds the secret of the token
	sessionLength = 12 * time.Hour
	maxFormBytes  = 1 << 20 // of a form without a payload
)

// errLogin: the request has no token, or the token is unknown, expired or revoked.
var errLogin = errors.New("log in first")

// grant returns the grant of the token in the request's cookie. errLogin: there is none that is valid.
func (d *Dashboard) grant(r *http.Request) (*access.Grant, error) {
	cookie, err := r.Cookie(sessionCookie)
	if err != nil {
		return nil, errLogin
	}
	g, err := d.cfg.Access.Authenticate(r.Context(), cookie.Value)
	if errors.Is(err, access.ErrRefused) {
		return nil, errLogin
	}
	return g, err
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
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via"} {
		if r.Header.Get(name) != "" { // the browser speaks to a proxy, without TLS
			return false
		}
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && peer.Addr().Unmap().IsLoopback() && isThisMachine(r.Host)
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
	Private bool   // the connection may carry a token
}

func (d *Dashboard) showLogin(w http.ResponseWriter, r *http.Request) {
	d.renderLogin(w, http.StatusOK, loginView{Next: safeNext(r.URL.Query().Get("next")), Private: isPrivate(r)})
}

// login checks the token of the form, and stores it in a cookie that no script can read.
func (d *Dashboard) login(w http.ResponseWriter, r *http.Request) {
	_ = parseForm(w, r, maxFormBytes) // a form that was not read has no token
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
		d.renderLogin(w, http.StatusUnauthorized, view)
		return
	case err != nil:
		d.fail(w, r, nil, err)
		return
	}
	d.cfg.Access.Audit(g, "dashboard.login", "")
	http.SetCookie(w, session(r, secret, int(sessionLength/time.Second)))
	redirect(w, view.Next)
}

// answerSession tells the script of a page whether the viewer is still logged in. It reads less than any page.
func (d *Dashboard) answerSession(w http.ResponseWriter, r *http.Request) {
	if q := d.begin(w, r); q != nil {
		w.WriteHeader(http.StatusNoContent)
	}
}

func (d *Dashboard) logout(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, session(r, "", -1))
	redirect(w, "login")
}

// session returns the cookie of a session. It has no Path, so the browser sends it to the directory of the login page,
// which is the path of the dashboard whatever a proxy strips.
func session(r *http.Request, secret string, maxAge int) *http.Cookie {
	return &http.Cookie{Name: sessionCookie, Value: secret, MaxAge: maxAge, HttpOnly: true, Secure: isTLS(r),
		SameSite: http.SameSiteStrictMode}
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
