package lmstfy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/lmstfyserver"
	"github.com/duestream/duestream/integration/redistest"
)

// ask sends a request to an lmstfy server.
func ask(t *testing.T, method, url string, body []byte, versioned bool, into any) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if versioned {
		request.Header.Set("Enable-Job-Version", "YES")
		request.Header.Set("Job-Attr-Colour", "red")
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer func() { _ = answer.Body.Close() }()
	text, _ := io.ReadAll(answer.Body)
	if into != nil && answer.StatusCode < 300 {
		if err := json.Unmarshal(text, into); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	return answer.StatusCode
}

// Only with DUESTREAM_TEST_FULL=1: Move moves the jobs of a real lmstfy server, while it publishes, delivers, times
// out, buries and respawns jobs. Each job that the server accepted and that was not acknowledged must be in duestream,
// once, with its bytes.
func TestARealServerIsMoved(t *testing.T) {
	if !lmstfyserver.Full() {
		t.Log("set DUESTREAM_TEST_FULL=1 to build and move a real lmstfy")
		return
	}
	redis := redistest.Own(t, "--appendonly", "yes")
	server := lmstfyserver.Start(t, redis)
	r, err := bridge.Dial(t.Context(), redis.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	o := &old{t: t, c: redis.Client(t), op: redistest.Must(admin.New(r, ""))}

	var mu sync.Mutex
	want, acked := map[string][]byte{}, map[string]bool{}
	publish := func(i int) {
		var job struct {
			ID string `json:"job_id"`
		}
		body := fmt.Appendf(nil, "\x00\xff%d", i)
		query := []string{"tries=3&ttl=0", "tries=3&delay=3&ttl=600", "tries=1&delay=1",
			"tries=65535&delay=3600&ttl=4000"}[i%4]
		if code := ask(t, "PUT", fmt.Sprintf("%s/api/ns/q%d?%s", server.URL, i%3, query), body, i%2 == 0, &job); code != 201 {
			t.Error("publish: ", code)
		}
		mu.Lock()
		want[job.ID] = body
		mu.Unlock()
	}
	end := time.Now().Add(8 * time.Second)
	var work sync.WaitGroup
	for n := range 2 {
		work.Go(func() {
			for i := n; time.Now().Before(end.Add(-2 * time.Second)); i += 2 {
				publish(i)
			}
		})
		work.Go(func() { // consumes jobs, and acknowledges one in four
			for i := 0; time.Now().Before(end); i++ {
				var jobs []struct {
					ID, Queue string
					Job       string `json:"job_id"`
				}
				ask(t, "GET", server.URL+"/api/ns/q0,q1?ttr=1&count=5", nil, false, &jobs)
				for k, j := range jobs {
					if (i+k)%4 == 0 {
						mu.Lock()
						acked[j.Job] = true
						mu.Unlock()
						ask(t, "DELETE", fmt.Sprintf("%s/api/ns/%s/job/%s", server.URL, j.Queue, j.Job), nil, false, nil)
					}
				}
				ask(t, "PUT", server.URL+"/api/ns/q0/deadletter?limit=2", nil, false, nil)
			}
		})
	}
	<-time.After(3 * time.Second)
	sum := o.move()
	t.Logf("while the server was in use: %+v", sum)
	work.Wait()
	last := o.move()
	t.Logf("after its use: %+v", last)
	redistest.Want(t, "refused", sum.Refused+last.Refused, 0)
	redistest.Want(t, "lost by lmstfy, or seen so", sum.Stray+last.Stray, 0)

	got := map[string]bool{}
	for _, queue := range []string{"ns:q0", "ns:q1", "ns:q2"} {
		for id, r := range o.holds(queue) {
			got[id] = true
			if !slices.Equal(r.Payload, want[id]) {
				t.Errorf("%s: %q, want %q", id, r.Payload, want[id])
			}
			if (r.Headers["attr-colour"] == "red") != (len(id) == 27) {
				t.Errorf("%s: headers %v", id, r.Headers)
			}
		}
	}
	lost := 0
	for id := range want {
		if !got[id] && !acked[id] {
			lost++
		}
	}
	t.Logf("published %d, acknowledged in lmstfy %d, in duestream %d", len(want), len(acked), len(got))
	redistest.Want(t, "lost", lost, 0)
	redistest.Want(t, "moved again", o.move().moved(), 0)

	removed := o.move(removing)
	redistest.Want(t, "removed", removed.Removed, removed.Known)
	redistest.Want(t, "nothing is left to move", o.move(), tally{})
	for _, queue := range []string{"q0", "q1", "q2"} { // lmstfy still works with the rest
		var size struct{ Size int }
		ask(t, "GET", server.URL+"/api/ns/"+queue+"/deadletter/size", nil, false, &size)
		redistest.Want(t, "dead letters that lmstfy counts", size.Size, 0)
	}
}
