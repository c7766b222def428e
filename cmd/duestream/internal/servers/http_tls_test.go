package servers_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
)

// pairFiles writes a self-signed certificate for 127.0.0.1 and its key into files, and returns their paths and a pool
// that trusts the certificate.
func pairFiles(t *testing.T) (cert, key string, trust *x509.CertPool) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	dir := t.TempDir()
	der, err := x509.MarshalPKCS8PrivateKey(s.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, trust = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), x509.NewCertPool()
	trust.AddCert(s.Certificate())
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: s.Certificate().Raw},
		key: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key, trust
}

// A gateway speaks TLS with HTTP/2, also to operators beyond this machine, and reloads its files. With a client CA, it
// refuses clients without a certificate. After a bad change of a file, the former certificate holds.
func TestTheHTTPSideSpeaksTLS(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	cert, key, trust := pairFiles(t)
	file := filepath.Join(t.TempDir(), "accounts")
	if err := os.WriteFile(file, []byte("ana:correct horse\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: trust, MinVersion: tls.VersionTLS12}}}
	asks := func(url string) (int, string, error) {
		res, err := client.Get(url) //nolint:noctx // of a test
		if err != nil {
			return 0, "", err
		}
		return res.StatusCode, res.Proto, res.Body.Close()
	}
	open := c.Start("gateway", "--http", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--admin", "0.0.0.0:0",
		"--admin-accounts-file", file)
	_, port, err := net.SplitHostPort(open.ListensFor("operators"))
	if err != nil {
		t.Fatal(err)
	}
	at := "https://" + open.ListensFor("requests")
	for url, want := range map[string]int{at + "/v1/openapi.json": http.StatusOK, at + "/v1/queues": http.StatusUnauthorized,
		"https://127.0.0.1:" + port + "/metrics": http.StatusUnauthorized} {
		if code, proto, err := asks(url); code != want || proto != "HTTP/2.0" {
			t.Errorf("%s: %d over %s (%v)", url, code, proto, err)
		}
	}
	plain := strings.Replace(at, "https", "http", 1)
	if code, _ := clitest.Ask(t, "GET", plain+"/v1/openapi.json", ""); code != http.StatusBadRequest {
		t.Errorf("without TLS: %d", code)
	}
	closed := c.Start("gateway", "--http", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert)
	if code, _, err := asks("https://" + closed.ListensFor("requests") + "/v1/openapi.json"); err == nil {
		t.Errorf("without a certificate: %d", code)
	}
	if err := os.WriteFile(cert, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open.Says("so the former ones hold")
	if code, _, err := asks(at + "/v1/openapi.json"); code != http.StatusOK {
		t.Errorf("the former certificate: %d, %v", code, err)
	}
	c.Fails(exit.Failure, []string{"tls-cert " + cert}, "serve", "--http", "127.0.0.1:0", "--tls-cert", cert,
		"--tls-key", key)
	c.Fails(exit.Invalid, []string{"tls-cert and tls-key must be given together"}, "serve", "--tls-cert", cert)
	c.Fails(exit.Invalid, []string{"tls-cert and tls-key must be given together"}, "gateway", "--tls-client-ca", cert)
}
