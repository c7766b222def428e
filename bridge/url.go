package bridge

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// parameters are the parameters that a URL may have: first those of the client library, then our own. The library would
// ignore unknown parameters.
var parameters = []string{
	"addr", "db", "dial_timeout", "write_timeout", "protocol", "client_cache", "max_retries", "client_name",
	"master_set", "skip_verify",
	paramCA, paramCert, paramKey, paramServerName, paramSentinelUser, paramSentinelPassword,
}

// Parameters of our own.
const (
	paramCA               = "ca"          // file with authorities that sign server certificates; default: the system's
	paramCert             = "cert"        // file with the client's certificate
	paramKey              = "key"         // file with the private key of the client's certificate
	paramServerName       = "server_name" // name in every server's certificate; default: the host that we connect to
	paramSentinelUser     = "sentinel_user"
	paramSentinelPassword = "sentinel_password"
)

// parseURL reads the connection options from a URL.
func parseURL(text string) (rueidis.ClientOption, error) {
	opt, err := rueidis.ParseURL(text)
	if err != nil {
		return opt, invalidURL(text, "must be like redis://host:6379 or rediss://user:password@host:6379/0")
	}
	u, err := url.Parse(text)
	if err != nil {
		return opt, invalidURL(text, "must be like redis://host:6379 or rediss://user:password@host:6379/0")
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return opt, invalidURL(text,
			"has a parameter that is not escaped: %%, &, ; and = in a value are written %%25, %%26, %%3B and %%3D")
	}
	for name := range q {
		if !slices.Contains(parameters, name) {
			return opt, invalidURL(text, "has the parameter %q, which is none of %s", name, strings.Join(parameters, ", "))
		}
	}
	opt.Sentinel.Username, opt.Sentinel.Password = q.Get(paramSentinelUser), q.Get(paramSentinelPassword)
	if opt.Sentinel.MasterSet == "" && opt.Sentinel.Password+opt.Sentinel.Username != "" {
		return opt, invalidURL(text, "has %s or %s without master_set", paramSentinelUser, paramSentinelPassword)
	}
	if opt.TLSConfig == nil {
		for _, name := range []string{paramCA, paramCert, paramKey, paramServerName} {
			if q.Has(name) {
				return opt, invalidURL(text, "has %s, which needs rediss:// or valkeys://", name)
			}
		}
		return opt, nil
	}
	// The library expects the first host's name from every server. With an empty name, each server must prove the
	// host that we connect to.
	opt.TLSConfig.ServerName = q.Get(paramServerName)
	return opt, setCertificates(opt.TLSConfig, q.Get(paramCA), q.Get(paramCert), q.Get(paramKey))
}

func setCertificates(config *tls.Config, ca, cert, key string) error {
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return lua.Invalid("redis URL: "+paramCA, ca, "cannot be read: %v", reason(err))
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return lua.Invalid("redis URL: "+paramCA, ca, "holds no certificate in PEM form")
		}
	}
	if cert == "" && key == "" {
		return nil
	}
	if cert == "" || key == "" {
		return lua.Invalid("redis URL: "+paramCert, cert, "must come together with %s", paramKey)
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return lua.Invalid("redis URL: "+paramCert, cert, "cannot be used with the %s %s: %v", paramKey, key, reason(err))
	}
	config.Certificates = []tls.Certificate{pair}
	return nil
}

// reason returns the error of a file without its path, because the caller names the path.
func reason(err error) error {
	if path := (*os.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return err
}

func invalidURL(text, rule string, args ...any) error {
	return &lua.InvalidError{Field: "redis URL", Value: Redact(text), Rule: fmt.Sprintf(rule, args...)}
}

var passwordParam = regexp.MustCompile(`(?i)([?&][^=&]*pas[^=&]*=)[^&]*`)

var schemePart = regexp.MustCompile(`^[a-z]*://`)

// Redact returns a URL without users and passwords, for logs and errors. It also redacts a URL with a missing or
// misspelt scheme, because the error about the scheme shows the URL.
func Redact(text string) string {
	scheme := schemePart.FindString(text)
	rest := text[len(scheme):]
	masked := passwordParam.ReplaceAllString(rest, "${1}…")
	if i := strings.LastIndex(masked, "@"); i >= 0 {
		masked = "…@" + masked[i+1:]
	} else if strings.Contains(rest, "@") { // the @ was in a parameter, and may separate a password from the host
		masked = "…"
	}
	return scheme + masked
}
