package listener

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// accounts writes a file of accounts and reads it.
func accounts(t *testing.T, text string) (Accounts, error) {
	path := filepath.Join(t.TempDir(), "accounts")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return ReadAccounts(path)
}

// A file with a bad line is refused as a whole. The error names the line, and never shows a password.
func TestAFileOfAccountsIsReadWholeOrNotAtAll(t *testing.T) {
	all, err := accounts(t, "# ours\n\nana:correct horse\r\nbo:with:colons:in it\n")
	if err != nil || len(all) != 2 || !all.accept("ana", "correct horse") || !all.accept("bo", "with:colons:in it") ||
		all.accept("ana", "") || all.accept("cy", "correct horse") || all.accept("", "") {
		t.Error(all, err)
	}
	for text, says := range map[string]string{"": "no account", "#\n": "no account", "ana:short\n": "line 1: must be",
		":correct horse": "line 1", "ana": "line 1", "\nana:correct horse\nana:battery staple": "line 3: account \"ana\""} {
		_, err := accounts(t, text)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "horse") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := ReadAccounts(t.TempDir()); err == nil {
		t.Error("a directory")
	}
}

// With accounts, a request needs one. Without accounts, Guard refuses a host that is a name (DNS rebinding) and a
// request that a proxy has forwarded. A web page (Origin, Sec-Fetch-Site) can change nothing. /healthz is open to all,
// and Guard lets through whatever is below /free/. The guarded handler answers 418.
func TestAGuardLetsInWhoMay(t *testing.T) {
	all, err := accounts(t, "ana:correct horse")
	if err != nil {
		t.Fatal(err)
	}
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	for _, c := range []struct {
		accounts       Accounts
		method, target string
		name, password string
		header         string // a header that the request has
		want           int
	}{
		{nil, "GET", "http://127.0.0.1:1/x", "", "", "", http.StatusTeapot},
		{nil, "GET", "http://[::1]:1/x", "", "", "", http.StatusTeapot},
		{nil, "GET", "http://localhost/x", "", "", "", http.StatusTeapot},
		{nil, "GET", "http://evil.example:1/x", "", "", "", http.StatusForbidden},
		{nil, "POST", "http://127.0.0.1:1/x", "", "", "", http.StatusTeapot},
		{nil, "POST", "http://127.0.0.1:1/x", "", "", "Origin", http.StatusForbidden},
		{nil, "DELETE", "http://127.0.0.1:1/x", "", "", "Sec-Fetch-Site", http.StatusForbidden},
		{all, "GET", "http://h/x", "", "", "", http.StatusUnauthorized},
		{all, "GET", "http://h/x", "ana", "correct horse", "", http.StatusTeapot},
		{all, "GET", "http://h/x", "ana", "battery staple", "", http.StatusUnauthorized},
		{all, "GET", "http://h/x", "bo", "correct horse", "", http.StatusUnauthorized},
		{all, "POST", "http://h/x", "ana", "correct horse", "Origin", http.StatusForbidden},
		{all, "GET", "http://h/healthz", "", "", "", http.StatusTeapot},
		{all, "GET", "http://h/x", "ana", "correct horse", "X-Forwarded-For", http.StatusTeapot},
		{nil, "GET", "http://127.0.0.1/x", "", "", "X-Forwarded-For", http.StatusForbidden},
		{nil, "POST", "http://127.0.0.1/x", "", "", "x-forwarded-host", http.StatusForbidden},
		{nil, "GET", "http://127.0.0.1/x", "", "", "Forwarded", http.StatusForbidden},
		{nil, "GET", "http://127.0.0.1/x", "", "", "X-Real-IP", http.StatusForbidden},
		{nil, "GET", "http://127.0.0.1/x", "", "", "Via", http.StatusForbidden},
		{nil, "GET", "http://127.0.0.1/x", "", "", "X-Forwarded", http.StatusForbidden},
		{nil, "GET", "http://127.0.0.1/x", "", "", "X-Client-IP", http.StatusForbidden},
		{nil, "GET", "http://127.0.0.1/x", "", "", "X-Cluster-Client-IP", http.StatusForbidden},
		{nil, "GET", "http://127.0.0.1/x", "", "", "X-Original-Forwarded-For", http.StatusForbidden},
		{nil, "GET", "http://127.0.0.1/x", "", "", "True-Client-IP", http.StatusForbidden},
		{nil, "GET", "http://127.0.0.1/x", "", "", "CF-Connecting-IP", http.StatusForbidden},
		{nil, "GET", "http://127.0.0.1/x", "", "", "Fly-Client-IP", http.StatusForbidden},
		{nil, "GET", "http://127.0.0.1/x", "", "", "CDN-Loop", http.StatusForbidden},
		{all, "GET", "http://h/x", "ana", "correct horse", "CF-Connecting-IP", http.StatusTeapot},
		{nil, "GET", "http://127.0.0.1/x", "", "", "X-Request-ID", http.StatusTeapot},
		{nil, "GET", "http://127.0.0.1/healthz", "", "", "X-Forwarded-For", http.StatusTeapot},
		{all, "GET", "http://h/healthz/x", "", "", "", http.StatusUnauthorized},
		{all, "GET", "http://h/free/x", "", "", "", http.StatusTeapot},
		{all, "POST", "http://h/free/x", "", "", "Origin", http.StatusTeapot},
		{nil, "POST", "http://ops.example/free/x", "", "", "X-Forwarded-For", http.StatusTeapot},
		{all, "GET", "http://h/free", "", "", "", http.StatusUnauthorized},
		{all, "GET", "http://h/freedom", "", "", "", http.StatusUnauthorized},
		{all, "GET", "http://h/x/free/", "", "", "", http.StatusUnauthorized},
		{all, "GET", "http://h//free/x", "", "", "", http.StatusUnauthorized},
		{all, "GET", "http://h/./free/x", "", "", "", http.StatusUnauthorized},
		{all, "GET", "http://h/Free/x", "", "", "", http.StatusUnauthorized},
		{nil, "GET", "http://127.0.0.1/freedom", "", "", "X-Forwarded-For", http.StatusForbidden},
	} {
		open := Open{Paths: []string{"/healthz"},
			Free: func(path string) bool { return strings.HasPrefix(path, "/free/") }}
		r := httptest.NewRequest(c.method, c.target, nil)
		if c.name != "" {
			r.SetBasicAuth(c.name, c.password)
		}
		if c.header != "" {
			r.Header.Set(c.header, "null")
		}
		w := httptest.NewRecorder()
		if c.accounts.Guard(next, open).ServeHTTP(w, r); w.Code != c.want ||
			(w.Code == http.StatusUnauthorized) != (w.Header().Get("WWW-Authenticate") != "") {
			t.Errorf("%+v: %d", c, w.Code)
		}
	}
}
