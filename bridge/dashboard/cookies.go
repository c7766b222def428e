package dashboard

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// This file holds the cookies of the dashboard.

// sessionCookie is the name of the cookie that holds a login, without TLS. Over TLS a prefix stands before the name, so
// that a browser refuses cookies that others have planted. With securePrefix it refuses cookies that came without TLS,
// and with hostPrefix also cookies of other hosts. A cookie with hostPrefix is sent to all paths of the host, so it is
// for a dashboard whose path is /.
const (
	sessionCookie = "duestream_session"
	securePrefix  = "__Secure-"
	hostPrefix    = "__Host-"
)

// sessionNames are the names of cookies that hold a login. A login of an earlier one counts more.
var sessionNames = []string{hostPrefix + sessionCookie, securePrefix + sessionCookie, sessionCookie}

// newCookie returns a cookie. It has no Path, so the browser sends it to the directory of the page that sets it, which
// is the path of the dashboard whatever a proxy strips.
func newCookie(r *http.Request, name, value string, maxAge int) *http.Cookie {
	c := &http.Cookie{Name: name, Value: value, MaxAge: maxAge, HttpOnly: true, Secure: isSecure(r),
		SameSite: http.SameSiteStrictMode}
	if strings.HasPrefix(name, hostPrefix) {
		c.Path = "/"
	}
	return c
}

// isSecure reports whether a cookie may be limited to TLS. A proxy may hide the TLS of the browser; an Origin with
// https then shows it. http.CrossOriginProtection has checked the Origin.
func isSecure(r *http.Request) bool {
	return isTLS(r) || strings.HasPrefix(r.Header.Get("Origin"), "https://")
}

// loginPath returns the path of the login page in the browser, which sends a form of that page; "" = not known.
func loginPath(r *http.Request) string {
	page, err := url.Parse(r.Referer())
	if err != nil || !strings.HasSuffix(page.Path, "/login") {
		return ""
	}
	return page.Path
}

// newSession returns the cookie of a login, which the browser sends from the login page.
func newSession(r *http.Request, secret string) *http.Cookie {
	name := sessionCookie
	switch {
	case isSecure(r) && loginPath(r) == "/login":
		name = hostPrefix + name
	case isSecure(r):
		name = securePrefix + name
	}
	return newCookie(r, name, sessionValue(secret, time.Now()), int(sessionLength/time.Second))
}

// sessionValue returns the value of the cookie of a login: its time in seconds since 1970, a dot, and the secret.
func sessionValue(secret string, begun time.Time) string {
	return strconv.FormatInt(begun.Unix(), 10) + "." + secret
}

// sessionSecret returns the secret of a cookie. ok is false if the login is too old. A login may seem to begin later,
// because the clocks of processes differ.
func sessionSecret(value string, now time.Time) (secret string, ok bool) {
	text, secret, _ := strings.Cut(value, ".")
	begun, err := strconv.ParseInt(text, 10, 64)
	return secret, err == nil && now.Sub(time.Unix(begun, 0)).Abs() < sessionLength
}

// dropSessions tells the browser to delete the cookies of logins that it has sent.
func dropSessions(w http.ResponseWriter, r *http.Request) {
	for _, name := range sessionNames {
		if len(r.CookiesNamed(name)) > 0 {
			http.SetCookie(w, newCookie(r, name, "", -1))
		}
	}
}

// dropPlanted tells the browser to delete cookies of logins that another host or path may have planted. Otherwise such
// a cookie could lock a viewer out, because the dashboard accepts none of two different logins. A cookie is deleted by
// its name, domain and path. The browser does not send its domain and path, so dropPlanted names all possible ones. The
// page to show after the login is next: a browser does not send a cookie with the path of that page to the login.
func dropPlanted(w http.ResponseWriter, r *http.Request, next string) {
	for _, name := range sessionNames {
		isIgnored := strings.HasPrefix(name, hostPrefix) || name == sessionCookie && isTLS(r)
		if len(r.CookiesNamed(name)) == 0 || isIgnored {
			continue
		}
		for _, domain := range append(domainsOf(r.Host), "") {
			for _, path := range pathsTo(loginPath(r)) {
				http.SetCookie(w, plantedCookie(r, name, domain, path))
			}
		}
	}
	if page := pagePath(r, next); page != "" {
		name := sessionCookie
		if isSecure(r) {
			name = securePrefix + name
		}
		for _, domain := range append(domainsOf(r.Host), "") {
			http.SetCookie(w, plantedCookie(r, name, domain, page))
		}
	}
}

// plantedCookie returns a cookie that deletes a planted one.
func plantedCookie(r *http.Request, name, domain, path string) *http.Cookie {
	return &http.Cookie{Name: name, Domain: domain, Path: path, MaxAge: -1, Secure: isSecure(r)}
}

// pagePath returns the path in the browser of the page to show after a login; "" = it is not known, or is the overview.
func pagePath(r *http.Request, next string) string {
	folder, known := strings.CutSuffix(loginPath(r), "login")
	name, _, _ := strings.Cut(next, "?")
	if !known || name == "./" {
		return ""
	}
	return folder + name
}

// mostPlanted limits the domains, and the paths, that dropPlanted names. A proxy such as nginx refuses an answer whose
// headers exceed 4 KiB.
const mostPlanted = 5

// domainsOf returns the domains whose cookies a browser sends to a host. A browser ignores those that are public, such
// as com.
func domainsOf(host string) (domains []string) {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return nil
	}
	for found := true; found && strings.Contains(host, ".") && len(domains) < mostPlanted; {
		domains = append(domains, host)
		_, host, found = strings.Cut(host, ".")
	}
	return domains
}

// pathsTo returns the paths whose cookies a browser sends to a page.
func pathsTo(page string) (paths []string) {
	for i, c := range page {
		if c == '/' && i > 0 && len(paths) < mostPlanted {
			paths = append(paths, page[:i])
		}
		if c == '/' && len(paths) < mostPlanted {
			paths = append(paths, page[:i+1])
		}
	}
	return paths
}

// changedCookie tells for changedFor seconds that the viewer has changed something, maybe in another process. A page
// then shows nothing that was read before.
const (
	changedCookie = "duestream_changed"
	changedFor    = 5
)

// noticeCookie holds a sentence for the next page, in base64, behind its code. See noticeCode.
const noticeCookie = "duestream_notice"

// notify shows a sentence on the next page.
func (q *request) notify(text string) {
	secret, _, err := q.session(q.r)
	if text == "" || err != nil {
		return
	}
	text = cut(text, 1000)
	value := noticeCode(secret, text) + base64.RawURLEncoding.EncodeToString([]byte(text))
	http.SetCookie(q.w, newCookie(q.r, noticeCookie, value, 60))
}

// takeNotice returns the sentence that the last action left for this page, and deletes it.
func (q *request) takeNotice() string {
	cookie, err := q.r.Cookie(noticeCookie)
	if err != nil {
		return ""
	}
	http.SetCookie(q.w, newCookie(q.r, noticeCookie, "", -1))
	secret, _, err := q.session(q.r)
	if err != nil || len(cookie.Value) < noticeCodeBytes {
		return ""
	}
	code, rest := cookie.Value[:noticeCodeBytes], cookie.Value[noticeCodeBytes:]
	text, err := base64.RawURLEncoding.DecodeString(rest)
	if err != nil || !hmac.Equal([]byte(code), []byte(noticeCode(secret, string(text)))) {
		return ""
	}
	return string(text)
}

const noticeCodeBytes = 43 // 256 bits in base64

// noticeCode returns a code that shows that the dashboard wrote a sentence for the viewer. Otherwise another host could
// plant a cookie that tells the viewer to log in at some other place.
func noticeCode(secret, text string) string {
	code := hmac.New(sha256.New, []byte(secret))
	code.Write([]byte("notice\n" + text))
	return base64.RawURLEncoding.EncodeToString(code.Sum(nil))
}
