package integration

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/gateway"
	"github.com/duestream/duestream/bridge/lmstfy"
	"github.com/duestream/duestream/bridge/metrics"
	"github.com/duestream/duestream/bridge/push"
	"github.com/duestream/duestream/bridge/tracing"
	"github.com/duestream/duestream/integration/redistest"
)

// Every constructor refuses a bad configuration with one error, which begins with the name of the part and contains an
// InvalidError for each wrong field. A user can then mend all fields at once.
func TestConstructorsNameAllFaults(t *testing.T) {
	t.Parallel()
	const bad = "a{b"
	observer := redistest.Must(metrics.New(metrics.Config{}))
	for _, c := range []struct {
		part   string
		fields string       // the wrong fields
		refuse func() error // calls the constructor with wrong values in these fields
	}{
		{"client", "redis prefix name durability durability-timeout", func() error {
			_, err := bridge.NewClient(bridge.ClientConfig{Prefix: bad, Name: "a\nb", Observer: observer,
				Durability: bridge.Durability{Replicas: -1, Timeout: time.Hour}})
			return err
		}},
		{"bridge", "redis prefix identity max_attempts", func() error {
			policy := bridge.DefaultPolicy()
			policy.MaxAttempts = -1
			_, err := bridge.NewBridge(bridge.Config{Redis: &bridge.Redis{}, Prefix: bad, Identity: bridge.Identity{ID: "x"},
				Defaults: policy})
			return err
		}},
		{"worker", "redis prefix queue group consumer handler concurrency cancel-grace handler-timeout abandon-after " +
			"max-abandoned",
			func() error {
				_, err := bridge.NewWorker(bridge.WorkerConfig{Prefix: bad, Queue: "a b", Consumer: "a\nb", Concurrency: -1,
					CancelGrace: -1, HandlerTimeout: -1, AbandonAfter: -1, MaxAbandoned: 1 << 20})
				return err
			}},
		{"admin", "redis prefix", func() error {
			_, err := admin.New(nil, bad)
			return err
		}},
		{"access", "redis prefix", func() error {
			_, err := access.Open(access.Config{Prefix: bad})
			return err
		}},
		{"gateway", "redis access prefix durability max-payload max-polls max-requests timeout", func() error {
			_, err := gateway.New(gateway.Config{Prefix: bad, Durability: bridge.Durability{Replicas: -1}, MaxPayload: -1,
				MaxPolls: -1, MaxRequests: -1, Timeout: -1})
			return err
		}},
		{"lmstfy", "gateway", func() error { return lmstfy.Mount(nil) }},
		{"lmstfy", "admin", func() error {
			_, err := lmstfy.NewAdmin(nil, "", nil)
			return err
		}},
		{"push", "redis prefix look-interval", func() error {
			_, err := push.NewRunner(push.Config{Prefix: bad, LookInterval: -1})
			return err
		}},
		{"metrics", "max-queues max-groups timeout", func() error {
			_, err := metrics.New(metrics.Config{MaxQueues: -1, MaxGroups: -1, Timeout: -1})
			return err
		}},
		{"tracing", "client", func() error {
			_, err := tracing.NewClient(nil, tracing.Config{})
			return err
		}},
	} {
		err := c.refuse()
		if err == nil || !strings.HasPrefix(err.Error(), c.part+": ") || !errors.Is(err, bridge.ErrInvalid) {
			t.Errorf("%s: %v", c.part, err)
			continue
		}
		fields := invalidFields(err)
		want := strings.Fields(c.fields)
		slices.Sort(fields)
		slices.Sort(want)
		redistest.Want(t, "fields of "+c.part, strings.Join(fields, " "), strings.Join(want, " "))
	}
}

// Constructors accept a bridge.Redis that was not made by Dial, if both of its clients are set. They do not call the
// server.
func TestConstructorsAcceptOtherClients(t *testing.T) {
	t.Parallel()
	none := struct{ rueidis.Client }{} // a client without an implementation: any call panics
	r := &bridge.Redis{Client: none, Blocking: none}
	_, client := bridge.NewClient(bridge.ClientConfig{Redis: r})
	_, served := bridge.NewBridge(bridge.Config{Redis: r})
	_, operator := admin.New(r, "")
	_, runner := push.NewRunner(push.Config{Redis: r})
	if err := errors.Join(client, served, operator, runner); err != nil {
		t.Error(err)
	}
}

// invalidFields returns the fields of all InvalidErrors in an error, with - for spaces.
func invalidFields(err error) (fields []string) {
	switch e := err.(type) {
	case *bridge.InvalidError:
		return []string{strings.ReplaceAll(e.Field, " ", "-")}
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			fields = append(fields, invalidFields(one)...)
		}
	case interface{ Unwrap() error }:
		return invalidFields(e.Unwrap())
	}
	return fields
}
