package bridge

import (
	"errors"
	"strings"
	"testing"
)

// FuzzRedact: Redact hides the password of any URL, well formed or not, and keeps the part after the last @ readable.
// The error about an invalid URL does not show the password either. Regression: the error about a URL without a scheme,
// or with one slash too few, showed its password.
func FuzzRedact(f *testing.F) {
	for _, scheme := range []string{"redis://", "rediss://", "unix://", "redis:/", "redis:", "", "//", "http://",
		"redis://redis://", "x@y//"} {
		f.Add(scheme, "user", "s3cr3t-word", "host:6379/0?addr=other:1")
	}
	f.Add("redis://", "", "pa//ss@wo:rd", "[::1]:6379")
	f.Add("redis://", "u", "secret%", "host") // no URL
	f.Add("redis://a//", "u", "//sec@ret//", "h")
	f.Fuzz(func(t *testing.T, scheme, user, secret, host string) {
		host = strings.ReplaceAll(host, "@", "")
		url := scheme + user + ":" + secret + "@" + host
		const inErrors = "redis URL must be like redis://host:6379 or rediss://user:password@host:6379/0"
		if len(secret) < 6 || strings.Contains(scheme+host+inErrors, secret) {
			return // the secret also occurs elsewhere in the URL, or is so short that it may occur by chance
		}
		shown := Redact(url)
		keepsHost := strings.HasSuffix(shown, "@"+host) ||
			strings.Contains(strings.ToLower(url), "pass") // a parameter of that name is hidden, too
		if strings.Contains(shown, secret) || !keepsHost {
			t.Errorf("%q is shown as %q", url, shown)
		}
		_, err := parseURL(url)
		if err == nil {
			return
		}
		var invalid *InvalidError
		if !errors.As(err, &invalid) || strings.Contains(err.Error(), secret) {
			t.Errorf("%q is refused with %v", url, err)
		}
	})
}
