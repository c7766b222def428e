package dashboard_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/dashboard"
	"github.com/duestream/duestream/integration/redistest"
)

// The dashboard becomes a part of a program's own server, below any path. Close comes before Shutdown, which would wait
// for the streams of open pages.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	redisURL, prefix, giveBack := redistest.Lend()
	defer giveBack()

	r, err := bridge.Dial(ctx, redisURL)
	check(err)
	defer r.Close()
	store, err := access.Open(access.Config{Client: r.Client, Prefix: prefix})
	check(err)
	pages, err := dashboard.New(dashboard.Config{Redis: r, Prefix: prefix, Access: store})
	check(err)
	mux := http.NewServeMux()
	mux.Handle("/ops/queues/", http.StripPrefix("/ops/queues", pages))
	server := httptest.NewServer(mux)
	defer server.Close()
	defer pages.Close()

	// An operator makes a token, and a viewer logs in with it.
	operator, err := admin.New(r, prefix)
	check(err)
	token := admin.Token{Name: "ana", Verbs: []access.Verb{access.Inspect}, Queues: []string{"*"}}
	secret, err := operator.AddToken(ctx, token)
	check(err)
	cookies, err := cookiejar.New(nil)
	check(err)
	browser := http.Client{Jar: cookies}
	res, err := browser.PostForm(server.URL+"/ops/queues/login", url.Values{"token": {secret}})
	check(err)
	check(res.Body.Close())
	fmt.Println(res.Status, res.Request.URL.Path)
	// Output:
	// 200 OK /ops/queues/
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
