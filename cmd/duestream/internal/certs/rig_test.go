package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

var serial atomic.Int64

// newAuthority creates a certificate authority that signs its own certificate.
func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.pem, a.cert, a.key = a.make(template, nil, nil)
	return a
}

// make creates a key and a certificate for it, signed by the key of the parent, or by itself if parent is nil. It
// returns the certificate in PEM form and parsed, and the key.
func (a *authority) make(c, parent *x509.Certificate, by *ecdsa.PrivateKey) ([]byte, *x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.Subject = big.NewInt(serial.Add(1)), pkix.Name{CommonName: "test"}
	c.NotBefore = time.Now().Add(-2 * time.Hour)
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	if parent == nil {
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), parsed, key
}

// pair creates a certificate for server and client, with its key, both in PEM form, and returns the serial number.
// until is the end of its validity; zero means an hour from now.
func (a *authority) pair(until time.Time) (cert, key []byte, number int64) {
	a.t.Helper()
	cert, parsed, private := a.make(&x509.Certificate{NotAfter: until, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, a.cert, a.key)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), parsed.SerialNumber.Int64()
}

// rig is an HTTPS server with certificates from files. w reloads them.
type rig struct {
	*authority
	files  Files
	w      *Watched
	base   string
	log    *bytes.Buffer
	served atomic.Int64
}

// newRig starts a server with a certificate of a new authority, whose serial number it returns. If ca is not nil,
// clients must show a certificate of ca.
func newRig(t *testing.T, ca *authority) (r *rig, number int64) {
	t.Helper()
	dir := t.TempDir()
	r = &rig{authority: newAuthority(t), log: &bytes.Buffer{},
		files: Files{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}}
	cert, key, number := r.pair(time.Time{})
	r.write(r.files.Cert, cert)
	r.write(r.files.Key, key)
	if ca != nil {
		r.files.ClientCA = filepath.Join(dir, "ca")
		r.write(r.files.ClientCA, ca.pem)
	}
	var err error
	if r.w, err = Open(r.files, slog.New(slog.NewTextHandler(r.log, nil))); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{TLSConfig: r.w.Config(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
		ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			r.served.Add(1)
			_, _ = io.WriteString(w, q.Proto)
		})}
	go func() { _ = s.ServeTLS(socket, "", "") }()
	t.Cleanup(func() { _ = s.Close() })
	r.base = "https://" + socket.Addr().String()
	return r, number
}

func (r *rig) write(path string, text []byte) {
	r.t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// client returns a client that trusts the server, and shows the certificate if one is given.
func (r *rig) client(show ...[]byte) *http.Client {
	r.t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	config.RootCAs.AddCert(r.cert)
	if len(show) == 2 {
		pair, err := tls.X509KeyPair(show[0], show[1])
		if err != nil {
			r.t.Fatal(err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	t := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	r.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t}
}

// sees sends a request, and returns the protocol of the answer and the serial number of the certificate that the server
// showed.
func (r *rig) sees(c *http.Client) (proto string, number int64, err error) {
	r.t.Helper()
	res, err := c.Get(r.base) //nolint:noctx // of a test
	if err != nil {
		return "", 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), res.TLS.PeerCertificates[0].SerialNumber.Int64(), err
}

// wants fails the test unless a client gets an answer over HTTP/2 and sees the certificate with this serial number.
func (r *rig) wants(c *http.Client, number int64) {
	r.t.Helper()
	if proto, got, err := r.sees(c); err != nil || got != number || proto != "HTTP/2.0" {
		r.t.Errorf("%s, certificate %d (%v), want %d", proto, got, err, number)
	}
}

// logged returns how often the log has a text.
func (r *rig) logged(text string) int { return strings.Count(r.log.String(), text) }
