package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// Authority is a certificate authority for one test. It writes certificates and keys to files, because servers and
// clients read them from files.
type Authority struct {
	t    testing.TB
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	CA   string // PEM file with its own certificate
}

// NewAuthority makes an authority that nobody trusts yet.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, dir: t.TempDir()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.key = template, newKey(t)
	a.CA, _ = a.write("ca", template, a.key)
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Issue signs a certificate that is valid for a client, and for a server with these host names and IP addresses. It
// returns the PEM files of the certificate and its key. name is the certificate's common name.
func (a *Authority) Issue(name string, names ...string) (cert, key string) {
	a.t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, n)
		}
	}
	return a.write(name, template, newKey(a.t))
}

func (a *Authority) write(name string, template *x509.Certificate, key *ecdsa.PrivateKey) (certFile, keyFile string) {
	a.t.Helper()
	cert, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	secret, err2 := x509.MarshalECPrivateKey(key)
	if err := errors.Join(err, err2); err != nil {
		a.t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "EC PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// SecureServer is a server that only speaks TLS, and asks every client for a certificate.
type SecureServer struct {
	*Server
	CA, Cert, Key string // PEM files for a client that the server accepts
}

// TLS starts a server for this test that only speaks TLS. Its certificate, signed by the authority, is for the given
// names (127.0.0.1 if there are none). It accepts clients that have a certificate of the same authority.
func TLS(t testing.TB, a *Authority, names ...string) *SecureServer {
	t.Helper()
	if len(names) == 0 {
		names = []string{"127.0.0.1"}
	}
	cert, key := a.Issue("server", names...)
	s := &SecureServer{CA: a.CA}
	s.Cert, s.Key = a.Issue("client")
	pair, err := tls.LoadX509KeyPair(s.Cert, s.Key)
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(parsed(t, a.CA))
	s.Server = startNode(t, node{
		args: []string{
			"--port", "0", "--tls-port", "{port}", "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", a.CA,
			"--tls-auth-clients", "yes",
		},
		opt: rueidis.ClientOption{TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, RootCAs: trusted, Certificates: []tls.Certificate{pair}, ServerName: names[0],
		}},
		scheme: "rediss",
	})
	return s
}

func parsed(t testing.TB, file string) *x509.Certificate {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// ClientURL returns the address with the client's files, in the form that bridge.Dial takes. User and password may be
// empty.
func (s *SecureServer) ClientURL(user, password string) string {
	q := url.Values{"ca": {s.CA}, "cert": {s.Cert}, "key": {s.Key}}
	return address("rediss", user, password, s.Addr()) + "?" + q.Encode()
}
