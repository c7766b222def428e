package certs

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// After a change of both files, new connections get the new pair, and open ones go on with the old one. Between the two
// writes, key and certificate do not match, and the old pair holds.
func TestARotationDropsNoConnection(t *testing.T) {
	r, first := newRig(t, nil)
	before := r.client()
	r.wants(before, first)
	cert, key, second := r.pair(time.Time{})
	r.write(r.files.Cert, cert)
	r.w.reload() // between the two writes, key and certificate do not match
	r.w.reload()
	r.wants(r.client(), first)
	r.write(r.files.Key, key)
	r.w.reload()
	r.wants(before, first)
	r.wants(r.client(), second)
	r.w.reload()
	if r.logged("cannot be used") != 1 || r.logged("hold for new connections") != 1 || r.logged("level=") != 2 {
		t.Errorf("a line for each change of state:\n%s", r.log)
	}
}

// An unusable or missing file leaves the pair as it was, and is logged once. When the file is good again, that is
// logged as well.
func TestABrokenChangeKeepsWhatHeld(t *testing.T) {
	clients := newAuthority(t)
	r, number := newRig(t, clients)
	show, key, _ := clients.pair(time.Time{})
	for path, field := range map[string]string{r.files.Cert: "tls-cert ", r.files.Key: "tls-key ",
		r.files.ClientCA: "tls-client-ca "} {
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		r.log.Reset()
		for _, bad := range []string{"", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
			r.write(path, []byte(bad))
			r.w.reload()
			r.w.reload()
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		r.w.reload()
		r.w.reload()
		r.wants(r.client(show, key), number)
		// There are three bad states of a file: empty, broken and missing. Two of them may give the same error.
		if n := r.logged("so the former ones hold"); n < 2 || n > 3 || r.logged(field) < 2 || r.logged(path) != n {
			t.Errorf("%s: a line for each change of state, with the file:\n%s", field, r.log)
		}
		r.write(path, good)
		r.w.reload()
		r.w.reload()
		if r.logged("there again") != 1 {
			t.Errorf("%s: the log does not say that the file is good again:\n%s", field, r.log)
		}
	}
}

// With a client CA, clients without a certificate, with an expired one, or with one of another authority are refused. A
// change of the client CA holds for new connections.
func TestClientsMustShowACertificateThatHolds(t *testing.T) {
	clients, strangers := newAuthority(t), newAuthority(t)
	r, number := newRig(t, clients)
	good, key, _ := clients.pair(time.Time{})
	expired, expiredKey, _ := clients.pair(time.Now().Add(-time.Hour))
	foreign, foreignKey, _ := strangers.pair(time.Time{})
	r.wants(r.client(good, key), number)
	served := r.served.Load()
	for what, c := range map[string]*http.Client{"none": r.client(), "expired": r.client(expired, expiredKey),
		"foreign": r.client(foreign, foreignKey)} {
		if proto, _, err := r.sees(c); err == nil {
			t.Errorf("%s: %s, %v", what, proto, err)
		}
	}
	if r.served.Load() != served {
		t.Error("a client without a good certificate was served")
	}
	r.write(r.files.ClientCA, strangers.pem)
	r.w.reload()
	r.wants(r.client(foreign, foreignKey), number)
	if _, _, err := r.sees(r.client(good, key)); err == nil {
		t.Error("a client of the former authority is still served")
	}
}

// A client that resumes its TLS session shows no certificate again. So the server must not resume the session of a
// client that is no longer trusted.
func TestNoSessionOutlivesTheTrust(t *testing.T) {
	clients := newAuthority(t)
	r, number := newRig(t, clients)
	good, key, _ := clients.pair(time.Time{})
	c := r.client(good, key)
	transport := c.Transport.(*http.Transport)
	transport.TLSClientConfig.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	r.wants(c, number)
	transport.CloseIdleConnections()
	r.write(r.files.ClientCA, newAuthority(t).pem)
	r.w.reload()
	if proto, _, err := r.sees(c); err == nil {
		t.Errorf("it is served over %s", proto)
	}
}

// TLS 1.1 and older are refused. TLS 1.2 is accepted.
func TestOldProtocolsAreRefused(t *testing.T) {
	r, number := newRig(t, nil)
	c := r.client()
	c.Transport.(*http.Transport).TLSClientConfig.MinVersion = tls.VersionTLS10
	c.Transport.(*http.Transport).TLSClientConfig.MaxVersion = tls.VersionTLS11
	if _, _, err := r.sees(c); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
	c = r.client()
	c.Transport.(*http.Transport).TLSClientConfig.MaxVersion = tls.VersionTLS12
	r.wants(c, number)
}

// A file that is unusable at the start gives an error that names the flag and the file, and never shows a private key.
func TestAnErrorNamesTheFile(t *testing.T) {
	a := newAuthority(t)
	dir := t.TempDir()
	cert, key, _ := a.pair(time.Time{})
	_, other, _ := a.pair(time.Time{})
	path := func(name string, text []byte) string {
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return at
	}
	good := Files{Cert: path("cert", cert), Key: path("key", key), ClientCA: path("ca", a.pem)}
	empty, large := path("empty", nil), path("large", make([]byte, maxFileBytes+1))
	for what, c := range map[string]struct {
		files Files
		says  []string
	}{
		"no certificate": {Files{empty, good.Key, ""}, []string{"tls-cert " + empty, "no certificate in PEM form"}},
		"swapped":        {Files{good.Key, good.Cert, ""}, []string{"tls-cert " + good.Key}},
		"no key":         {Files{good.Cert, empty, ""}, []string{"tls-key " + empty}},
		"another's key":  {Files{good.Cert, path("other", other), ""}, []string{"tls-key ", "does not match"}},
		"missing":        {Files{dir + "/none", dir + "/nothing", ""}, []string{"tls-cert: open " + dir + "/none", "tls-key: open "}},
		"no authority":   {Files{good.Cert, good.Key, empty}, []string{"tls-client-ca " + empty}},
		"a directory":    {Files{good.Cert, good.Key, dir}, []string{"tls-client-ca " + dir}},
		"too large":      {Files{large, good.Key, ""}, []string{"tls-cert " + large, "at most"}},
	} {
		_, err := Open(c.files, slog.New(slog.DiscardHandler))
		for _, text := range c.says {
			if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "PRIVATE") {
				t.Errorf("%s: %v, want %q", what, err, text)
			}
		}
	}
	if _, err := Open(good, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
}
