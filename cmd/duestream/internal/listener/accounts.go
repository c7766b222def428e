package listener

import (
	"bufio"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
)

const minPassword = 12 // bytes; the length is the only protection against guessing

// Accounts maps names to the SHA-256 of their passwords, for HTTP basic authentication. With nil Accounts, everybody
// who reaches the address is let in.
type Accounts map[string][sha256.Size]byte

// ReadAccounts reads a file with name:password on each line. Empty lines, and lines that begin with #, are skipped.
// Errors name the line, and never a password.
func ReadAccounts(path string) (Accounts, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("file of accounts: %w", err)
	}
	defer file.Close()
	all := Accounts{}
	lines := bufio.NewScanner(file)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSuffix(lines.Text(), "\r")
		if strings.TrimSpace(line) == "" || line[0] == '#' {
			continue
		}
		name, password, _ := strings.Cut(line, ":")
		switch _, twice := all[name]; {
		case name == "" || len(password) < minPassword:
			return nil, fmt.Errorf("file of accounts %s: line %d: must be name:password, with a password of at least %d bytes",
				path, number, minPassword)
		case twice:
			return nil, fmt.Errorf("file of accounts %s: line %d: account %q stands there twice", path, number, name)
		}
		all[name] = sha256.Sum256([]byte(password))
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("file of accounts %s: %w", path, err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("file of accounts %s: holds no account", path)
	}
	return all, nil
}

// accept reports whether name has this password. An unknown name takes as long as a wrong password.
func (a Accounts) accept(name, password string) bool {
	want, known := a[name]
	got := sha256.Sum256([]byte(password))
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1 && known
}

// Open tells which paths Guard opens.
type Open struct {
	// Paths need no account and answer proxies, as probes of health must.
	Paths []string

	// Free reports whether Guard lets all requests to a path through, because the handler of the path has a login of its
	// own, and itself refuses requests of foreign pages. The path is that of http.Request.URL. nil = no path.
	Free func(path string) bool
}

// Guard lets a request reach next only with an account, unless its path is open. Guard also refuses requests that
// somebody else may have sent through a trusted browser or proxy:
//
//   - A request that changes something must not come from a web page. A page can make a browser send requests to
//     addresses that the page's own server does not reach.
//   - Without accounts, the host must be an IP address or localhost. A page could reach this address under a name of
//     its own (DNS rebinding).
//   - Without accounts, requests from a proxy reach only the open paths. The proxy may run on this machine, but its
//     clients do not.
func (a Accounts) Guard(next http.Handler, open Open) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if open.Free != nil && open.Free(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		hasAccounts, isOpen := a != nil, slices.Contains(open.Paths, r.URL.Path)
		changes := r.Method != http.MethodGet && r.Method != http.MethodHead
		fromPage := len(r.Header.Values("Origin"))+len(r.Header.Values("Sec-Fetch-Site")) > 0
		switch name, password, _ := r.BasicAuth(); {
		case hasAccounts && !isOpen && !a.accept(name, password):
			w.Header().Set("WWW-Authenticate", `Basic realm="duestream", charset="UTF-8"`)
			http.Error(w, "an account of this address is needed", http.StatusUnauthorized)
		case !hasAccounts && !isOpen && isForwarded(r.Header):
			http.Error(w, "without accounts (--admin-accounts-file) this address answers no proxy", http.StatusForbidden)
		case changes && fromPage, !hasAccounts && !isAddress(r.Host):
			http.Error(w, "not from a page of a browser", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
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

// isAddress reports whether a host is an IP address or localhost. Any other name could be DNS rebinding.
func isAddress(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return host == "localhost" || net.ParseIP(strings.Trim(host, "[]")) != nil
}

// Loopback reports whether an address, "host:port", can be reached from this machine only.
func Loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}
