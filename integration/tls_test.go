package integration

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// Client, worker, bridge and command work over TLS with certificates on both sides, each as its documented ACL user.
// All settings come from the URL.
func TestEverythingRunsOverTLS(t *testing.T) {
	t.Parallel()
	server := redistest.TLS(t, redistest.NewAuthority(t))
	admin := server.Client(t)
	for _, user := range documentedUsers(t) {
		if err := admin.Do(t.Context(), admin.B().Arbitrary(strings.Fields(user.Line)...).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	users := documentedUsers(t)
	url := func(user string) string { return server.ClientURL(user, users[user].Password) }
	s := &stack{t: t}
	b, err := bridge.NewBridge(bridge.Config{Redis: s.dial(url("bridge"))})
	if err != nil {
		t.Fatal(err)
	}
	s.run("bridge", b.Run)
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: s.dial(url("producer"))})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Schedule(t.Context(), "emails", []byte("x"), bridge.WithID("sdk"),
		bridge.In(50*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	duestream := build(t)
	run := func(user string, args ...string) (string, int) {
		r := runCommand(t, url(user), "", duestream, "", args...)
		return r.out + r.complaints, r.code
	}
	if out, code := run("producer", "schedule", "emails", "--id", "command", "--in", "50ms", "x"); code != 0 {
		t.Fatalf("schedule: exit code %d\n%s", code, out)
	}
	handled := make(chan string, 10)
	w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: s.dial(url("worker")), Queue: "emails", Group: "g",
		Handler: func(_ context.Context, m *bridge.Message) error { handled <- m.ID; return nil }})
	if err != nil {
		t.Fatal(err)
	}
	s.run("worker", w.Run)
	for left := map[string]bool{"sdk": true, "command": true}; len(left) > 0; {
		select {
		case id := <-handled:
			delete(left, id)
		case <-time.After(20 * time.Second):
			t.Fatalf("not handled: %v", left)
		}
	}
	if out, code := run("operator", "health"); code != 0 {
		t.Errorf("health: exit code %d\n%s", code, out)
	}
}

// A connection that cannot be trusted, and a URL that is wrong, are refused at once, with the reason and a hint what to
// check. DialWait, which waits for a server that does not answer, does not wait here. No error repeats a password.
func TestUntrustedServerIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	authority, other := redistest.NewAuthority(t), redistest.NewAuthority(t)
	server, named := redistest.TLS(t, authority), redistest.TLS(t, authority, "redis.example")
	plain := redistest.Own(t)
	wrongCert, wrongKey := other.Issue("stranger")
	notPEM := filepath.Join(t.TempDir(), "not.pem")
	if err := os.WriteFile(notPEM, []byte("-"), 0o600); err != nil {
		t.Fatal(err)
	}
	duestream := build(t)
	base := "rediss://" + server.Addr()
	client := "&cert=" + server.Cert + "&key=" + server.Key
	for _, c := range []struct {
		name, url string
		kind      error
		says      string // part of the error
		exit      int    // exit code of the command: 2 for a wrong URL, else 1
	}{
		{"another authority", base + "?ca=" + other.CA + client, bridge.ErrUntrusted, "unknown authority", 1},
		{"no CA", base + "?" + client, bridge.ErrUntrusted, "unknown authority", 1},
		{"another name", "rediss://" + named.Addr() + "?ca=" + server.CA + "&cert=" + named.Cert + "&key=" + named.Key,
			bridge.ErrUntrusted, "127.0.0.1", 1},
		{"no certificate", base + "?ca=" + server.CA, bridge.ErrUntrusted, "tls: ", 1},
		{"certificate of another", base + "?ca=" + server.CA + "&cert=" + wrongCert + "&key=" + wrongKey, bridge.ErrUntrusted,
			"tls: ", 1},
		{"no such file", base + "?ca=/nowhere/ca.pem", bridge.ErrInvalid, `ca "/nowhere/ca.pem": cannot be read: no such file`,
			2},
		{"no PEM", base + "?ca=" + notPEM, bridge.ErrInvalid, "holds no certificate in PEM form", 2},
		{"key without certificate", base + "?key=" + server.Key, bridge.ErrInvalid, "must come together with key", 2},
		{"key of another", base + "?cert=" + server.Cert + "&key=" + wrongKey, bridge.ErrInvalid, "private key does not match",
			2},
		{"CA without TLS", "redis://" + plain.Addr() + "?ca=" + server.CA, bridge.ErrInvalid, "needs rediss://", 2},
		{"misspelt", "redis://user:geheim@" + plain.Addr() + "?master=main", bridge.ErrInvalid, `has the parameter "master"`, 2},
		{"sentinel password alone", "redis://" + plain.Addr() + "?sentinel_password=geheim", bridge.ErrInvalid,
			"without master_set", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			r, err := bridge.DialWait(ctx, c.url, nil) // without a logger, because it must not wait, and so must not log
			if err == nil {
				r.Close()
			}
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "geheim") {
				t.Errorf("%v", err)
			}
			ran := runCommand(t, c.url, "", duestream, "", "schedule", "q", "x")
			text := ran.out + ran.complaints
			hinted := c.exit == 2 || strings.Contains(text, "hint: ") && strings.Contains(text, "ca=")
			if ran.code != c.exit || !strings.Contains(text, c.says) || !hinted ||
				strings.Contains(text, "geheim") {
				t.Errorf("exit code %d\n%s", ran.code, text)
			}
		})
	}
	t.Run("name given", func(t *testing.T) {
		t.Parallel()
		url := named.ClientURL("", "") + "&server_name=redis.example"
		r, err := bridge.Dial(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
	})
	t.Run("set by the program", func(t *testing.T) {
		t.Parallel()
		pair, err := tls.LoadX509KeyPair(server.Cert, server.Key)
		if err != nil {
			t.Fatal(err)
		}
		r, err := bridge.Dial(t.Context(), base+"?ca="+server.CA, func(o *rueidis.ClientOption) {
			o.TLSConfig.Certificates = []tls.Certificate{pair}
		})
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
	})
}
