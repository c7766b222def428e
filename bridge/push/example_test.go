package push_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/push"
	"github.com/duestream/duestream/integration/redistest"
)

// A partner gets each message of a group in a signed request. The partner runs in this program, so its network must be
// allowed.
func ExampleRunner() {
	url, prefix, giveBack := redistest.Lend()
	defer giveBack()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	redis, err := bridge.Dial(ctx, url, push.ManyReads)
	check(err)
	defer redis.Close()

	var verifier *standardwebhooks.Webhook
	done := make(chan struct{})
	partner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if verifier.Verify(body, r.Header) != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Printf("%s, attempt %s: %s\n", r.Header.Get(push.HeaderID), r.Header.Get(push.HeaderAttempt), body)
		close(done)
	}))
	defer partner.Close()

	change, err := push.NewStore(redis.Client, prefix).Set(ctx, push.Target{
		Queue: "orders", Group: "partner", URL: partner.URL, AllowHTTP: true,
		Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	})
	check(err)
	verifier, err = standardwebhooks.NewWebhook(change.Key) // give the key to the partner: it is shown only once
	check(err)

	runner, err := push.NewRunner(push.Config{Redis: redis, Prefix: prefix})
	check(err)
	stop, stopped := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { check(runner.Run(stop)) })

	client, err := bridge.NewClient(bridge.ClientConfig{Redis: redis, Prefix: prefix})
	check(err)
	_, err = client.Schedule(ctx, "orders", []byte(`{"paid":true}`), bridge.WithID("order-42"))
	check(err)
	<-done
	stopped()
	running.Wait()
	check(client.Close())
	// Output: orders:order-42, attempt 1: {"paid":true}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
