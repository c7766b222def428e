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

// New connections use the new pair. Open connections keep the old one.
func TestARotationDropsNoConnection(t *testing.T) {
	r, first := newRig(t, nil)
	before := r.client()
	r.wants(before, first)
	cert, key, second := r.pair(time.Time{})
	r.write(r.files.Cert, cert)
	r.w.look() // between the two writes, key and certificate do not match
	r.w.look()
	r.wants(r.client(), first)
	r.write(r.files.Key, key)
	r.w.look()
	r.wants(before, first)
	r.wants(r.client(), second)
	r.w.look()
	if r.logged("cannot be used") != 1 || r.logged("hold for new connections") != 1 || r.logged("level=") != 2 {
		t.Errorf("a line for each change of state:\n%s", r.log)
	}
}

// An unusable file changes nothing, and is reported once.
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
			r.w.look()
			r.w.look()
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		r.w.look()
		r.w.look()
		r.wants(r.client(show, key), number)
		if n := r.logged("so the former ones hold"); n < 2 || n > 3 || r.logged(field) < 2 || r.logged(path) != n {
			t.Errorf("%s: a line for each change of state, with the file:\n%s", field, r.log)
		}
		r.write(path, good)
		r.w.look()
		r.w.look()
		if r.logged("there again") != 1 {
			t.Errorf("%s: it does not say that all is well:\n%s", field, r.log)
		}
	}
}

// Clients without a certificate, with an expired one, or with one of another authority are refused. The client CA is
// reloaded, too.
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
		t.Error("somebody without the right certificate was served")
	}
	r.write(r.files.ClientCA, strangers.pem)
	r.w.look()
	r.wants(r.client(foreign, foreignKey), number)
	if _, _, err := r.sees(r.client(good, key)); err == nil {
		t.Error("who was trusted before is served still")
	}
}

// The session of a client that is no longer trusted is not resumed.
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
	r.w.look()
	if proto, _, err := r.sees(c); err == nil {
		t.Errorf("it is served over %s", proto)
	}
}

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

// An unusable file at the start gives an error that names the file and its purpose.
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
