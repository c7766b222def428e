package lmstfy_test

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/acl"
	"github.com/duestream/duestream/integration/redistest"
)

// The rights of the gateway's user in docs/operations/users.md are enough for all of lmstfy's API but destroy. destroy
// needs the further rights that the page names for it.
func TestTheDocumentedUserIsEnough(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operations/users.md")
	if err != nil {
		t.Fatal(err)
	}
	server := redistest.Own(t)
	prefix := server.Prefix(t)
	own := strings.ReplaceAll(string(text), "~duestream:", "~"+prefix+":")
	user := acl.Users(own)["gateway"]
	server.Do(t, strings.Fields(user.Line)...)
	admin, err := bridge.Dial(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	b, err := bridge.NewBridge(bridge.Config{Redis: admin, Prefix: prefix, AnyServer: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })

	r := newRigAt(t, strings.Replace(server.URL(), "redis://", "redis://gateway:"+user.Password+"@", 1), prefix)
	ask := func(want int, method, path, body string) (answered string) {
		t.Helper()
		a := r.do(method, path, body)
		if a.status != want {
			t.Errorf("%s %s: %d %s", method, path, a.status, a.body)
		}
		return a.body
	}
	ask(http.StatusCreated, "PUT", "/api/ns/q?tries=1", "x")
	ask(http.StatusCreated, "PUT", "/api/ns/q/bulk?delay=60", `["a","b"]`)
	ask(http.StatusOK, "GET", "/api/ns/q?ttr=1&timeout=10", "")
	ask(http.StatusOK, "GET", "/api/ns/q/size", "")
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		a := r.do("GET", "/api/ns/q/deadletter", "")
		return strings.Contains(a.body, `"deadletter_size":1`), a.body
	})
	ask(http.StatusOK, "GET", "/api/ns/q/deadletter/size", "")
	ask(http.StatusOK, "PUT", "/api/ns/q/deadletter?limit=10", "")
	id := ask(http.StatusOK, "GET", "/api/ns/q?ttr=60&timeout=10", "")
	_, id, _ = strings.Cut(id, `"job_id":"`)
	id, _, _ = strings.Cut(id, `"`)
	ask(http.StatusOK, "GET", "/api/ns/q/job/"+id, "")
	ask(http.StatusCreated, "PUT", "/api/ns/q/job/"+id, "again")
	ask(http.StatusNoContent, "DELETE", "/api/ns/q/job/"+id, "")
	ask(http.StatusOK, "GET", "/api/ns/q/peek", "")
	ask(http.StatusNoContent, "DELETE", "/api/ns/q/deadletter?limit=10", "")
	server.Do(t, "CONFIG", "SET", "maxmemory", "1")
	redistest.Want(t, "answer of a full server", ask(http.StatusServiceUnavailable, "PUT", "/api/ns/q", "x"),
		`{"error":"the store is full"}`)
	server.Do(t, "CONFIG", "SET", "maxmemory", "0")
	ask(http.StatusInternalServerError, "DELETE", "/api/ns/q", "")
	server.Do(t, append([]string{"ACL", "SETUSER", "gateway"}, acl.Also(own, "lmstfy's `destroy`")...)...)
	ask(http.StatusNoContent, "DELETE", "/api/ns/q", "")
	redistest.Want(t, "size after destroy", ask(http.StatusOK, "GET", "/api/ns/q/size", ""),
		`{"namespace":"ns","queue":"q","size":0}`)
}
