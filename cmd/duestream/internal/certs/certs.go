// Package certs provides TLS certificates from files, and reads the files again when they change. New connections use
// the new certificates; open connections are not affected.
package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

const (
	readInterval = 2 * time.Second
	maxFileBytes = 1 << 20
)

// Files are the paths of the certificates, in PEM form. Without ClientCA, clients are not asked for a certificate.
type Files struct {
	Cert     string // certificate of the server, followed by its intermediate certificates
	Key      string // private key of the server
	ClientCA string // authorities that may sign the certificates of clients
}

// Names of the files in errors.
const (
	cert     = "tls-cert"
	key      = "tls-key"
	clientCA = "tls-client-ca"
)

// Watched holds certificates that are reloaded when their files change.
type Watched struct {
	files   Files
	log     *slog.Logger
	current atomic.Pointer[tls.Config]

	// Used by Run's goroutine only.
	text  contents // contents in use
	fault string   // error of the files that was logged; "" if they can be used
}

// contents holds the bytes of the files.
type contents struct{ cert, key, clientCA []byte }

func (c contents) equal(o contents) bool {
	return bytes.Equal(c.cert, o.cert) && bytes.Equal(c.key, o.key) && bytes.Equal(c.clientCA, o.clientCA)
}

// Open reads the files. An error names the wrong file and its purpose.
func Open(files Files, log *slog.Logger) (*Watched, error) {
	w := &Watched{files: files, log: log}
	text, err := files.read()
	if err != nil {
		return nil, err
	}
	config, err := files.config(text)
	if err != nil {
		return nil, err
	}
	w.text = text
	w.current.Store(config)
	return w, nil
}

// Config returns a configuration for a server: TLS 1.2 or later, with HTTP/2 for clients that offer it.
func (w *Watched) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols(),
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return w.current.Load(), nil }}
}

// Run reads the files every two seconds until ctx ends. Unusable files change nothing. A fault is logged when it
// begins and when it ends.
func (w *Watched) Run(ctx context.Context) {
	ticker := time.NewTicker(readInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.reload()
		}
	}
}

// reload loads the files if they changed and can be used.
func (w *Watched) reload() {
	text, err := w.files.read()
	var config *tls.Config
	changed := err == nil && !text.equal(w.text)
	if changed {
		config, err = w.files.config(text)
	}
	switch {
	case err != nil && err.Error() != w.fault:
		w.fault = err.Error()
		w.log.Error("the changed certificates cannot be used, so the former ones hold", slog.Any("error", err))
	case err != nil:
	case changed:
		w.text, w.fault = text, ""
		w.current.Store(config)
		w.log.Info("the changed certificates hold for new connections")
	case w.fault != "":
		w.fault = ""
		w.log.Info("the former certificates are there again")
	}
}

func (f Files) read() (c contents, err error) {
	var errs [3]error
	c.cert, errs[0] = readFile(cert, f.Cert)
	c.key, errs[1] = readFile(key, f.Key)
	if f.ClientCA != "" {
		c.clientCA, errs[2] = readFile(clientCA, f.ClientCA)
	}
	return c, errors.Join(errs[:]...)
}

func readFile(field, path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err == nil && len(text) > maxFileBytes {
		err = fmt.Errorf("must be at most %d bytes", maxFileBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", field, path, err)
	}
	return text, nil
}

// config builds the configuration of a connection from the contents. With client certificates, sessions cannot be
// resumed, because a client shows no certificate when it resumes a session.
func (f Files) config(c contents) (*tls.Config, error) {
	if _, err := certificates(c.cert); err != nil {
		return nil, fmt.Errorf("%s %s: %w", cert, f.Cert, err)
	}
	pair, err := tls.X509KeyPair(c.cert, c.key)
	if err != nil {
		return nil, fmt.Errorf("%s %s, for %s %s: %w", key, f.Key, cert, f.Cert, err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: protocols()}
	if f.ClientCA == "" {
		return config, nil
	}
	authorities, err := certificates(c.clientCA)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", clientCA, f.ClientCA, err)
	}
	config.ClientCAs = x509.NewCertPool()
	for _, one := range authorities {
		config.ClientCAs.AddCert(one)
	}
	config.ClientAuth, config.SessionTicketsDisabled = tls.RequireAndVerifyClientCert, true
	return config, nil
}

func protocols() []string { return []string{"h2", "http/1.1"} }

// certificates parses all certificates in a text. It fails if the text has none.
func certificates(text []byte) (all []*x509.Certificate, err error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		one, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		return nil, errors.New("holds no certificate in PEM form")
	}
	return all, nil
}
