package push

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/lua"
)

// Check refuses a target with an invalid field, and names the field. A URL must be https, without a user, a fragment or
// a private address.
func TestWrongTargetsAreRefused(t *testing.T) {
	t.Parallel()
	for field, wrong := range map[string]func(*Target){
		"queue":        func(t *Target) { t.Queue = "a b" },
		"group":        func(t *Target) { t.Group = "" },
		"keys":         func(t *Target) { t.Keys = []string{testKey, testKey, testKey} },
		"key":          func(t *Target) { t.Keys = []string{"secret"} },
		"timeout":      func(t *Target) { t.Timeout = time.Hour },
		"concurrency":  func(t *Target) { t.Concurrency = -1 },
		"failures":     func(t *Target) { t.Failures = -2 },
		"interval":     func(t *Target) { t.Interval = -time.Second },
		"max_interval": func(t *Target) { t.MaxInterval = time.Millisecond },
		"network":      func(t *Target) { t.Networks = []netip.Prefix{netip.MustParsePrefix("10.1.2.3/8")} },
		"networks":     func(t *Target) { t.Networks = make([]netip.Prefix, 21) },
		"dead_status":  func(t *Target) { t.DeadStatus = []int{503} },
		"dead_status ": func(t *Target) { t.DeadStatus = []int{200} },
	} {
		target := to("https://example.com/hook")
		wrong(&target)
		err := target.Check()
		if !errors.Is(err, lua.ErrInvalid) || !strings.Contains(err.Error(), strings.TrimSpace(field)) {
			t.Errorf("%s: %v", field, err)
		}
	}
	for url, fits := range map[string]bool{
		"https://example.com": true, "https://example.com:8443/a?b=c": true, "http://example.com/": false, "": false, "https://": false,
		"https://u:p@example.com/": false, "https://example.com/#f": false, "https://example.com/#": false, "ftp://example.com": false,
		"https:example.com": false, "//example.com": false, "https://exa mple.com": false, "https://example.com/\n": false,
		"https://10.0.0.1/": false, "https://[::1]/": false, "https://169.254.169.254/latest": false, "https://:443/": false,
		"https://[::ffff:127.0.0.1]/": false, "https://8.8.8.8/": true, "https://example.com/" + strings.Repeat("a", 3000): false,
		"file:///etc/passwd": false,
	} {
		target := to(url)
		target.AllowHTTP, target.Networks = false, nil
		if err := target.Check(); (err == nil) != fits {
			t.Errorf("%q: %v", url, err)
		}
	}
}

// A target is read from Redis as it was stored. A text that is no valid target, or has an unknown field, is refused
// without showing its key.
func TestTargetsComeBackAsTheyWereStored(t *testing.T) {
	t.Parallel()
	want := to("https://example.com/?a=<b>&c")
	want.Keys, want.Headers, want.DeadStatus = []string{testKey, NewKey()}, map[string]string{"X-A": "b"}, []int{404, 422}
	want.Timeout, want.Failures = 1500*time.Millisecond, -1
	got, err := parseTarget("q", "g", want.text())
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\n%+v: %v", got, want, err)
	}
	for _, text := range []string{"", "null", "{}", "[]", `{"url":"https://example.com","keys":["` + testKey + `"],"later":1}`,
		`{"url":"https://example.com","keys":["` + testKey + `"]} {}`, `{"url":1}`, strings.Repeat(" ", 1<<17),
		`{"url":"https://example.com","keys":["` + testKey + `"],"networks":[""]}`} {
		_, err := parseTarget("q", "g", text)
		if !errors.Is(err, lua.ErrInvalid) || strings.Contains(err.Error(), testKey) {
			t.Errorf("%.60q: %v", text, err)
		}
	}
}

// FuzzParseTarget: a text that parseTarget accepts gives a target that can be stored, read again and posted to.
func FuzzParseTarget(f *testing.F) {
	f.Add(to("https://example.com/").text())
	f.Add(`{"url":"http://[::1%25eth0]/","allow_http":true,"keys":[],"networks":["::/0"]}`)
	f.Fuzz(func(t *testing.T, text string) {
		target, err := parseTarget("q", "g", text)
		if err != nil {
			return
		}
		again, err := parseTarget("q", "g", target.text())
		if err != nil || again.text() != target.text() {
			t.Errorf("%q becomes %q: %v", target.text(), again.text(), err)
		}
		if p := newPoster(target, nil, nil); p.host == "" || len(p.secrets) == 0 {
			t.Errorf("%q makes no request", text)
		}
	})
}
