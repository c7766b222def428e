package lmstfy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/pull"
)

// A queue that has as many groups as a queue may have is refused for that reason, and the other queues of the request
// are served. Regression: the answer was always that the settings of the queue were changed, and no other queue of the
// request was served.
func TestAQueueWithTooManyGroupsIsRefusedAsThat(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, queue := range []string{"full-1", "full-2"} {
		stream := lua.NewKeys(r.prefix, "ns:"+queue).Stream
		for i := range pull.MaxGroups {
			create := r.r.Client.B().XgroupCreate().Key(stream).Group(fmt.Sprint("g", i)).Id("0").Mkstream().Build()
			if err := r.r.Client.Do(t.Context(), create).Error(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 {
		for path, want := range map[string]int{"full-1": 422, "full-1,full-2": 422, "full-1,free": 404,
			"free,full-1,full-2": 404, "full-1,free?timeout=1": 404} {
			got := r.do("GET", "/api/ns/"+path, "")
			redistest.Want(t, path+": "+got.body, got.status, want)
			if want == 422 && !strings.Contains(got.body, "100 groups") {
				t.Error(path, got.body)
			}
		}
	}
	id := r.publish("free", "x", 60, 1, 0)
	got := r.do("GET", "/api/ns/full-1,free", "")
	redistest.Want(t, got.body, got.status, 200)
	redistest.Want(t, "acknowledged", r.do("DELETE", "/api/ns/free/job/"+id, "").status, 204)
	destroy := r.r.Client.B().XgroupDestroy().Key(lua.NewKeys(r.prefix, "ns:full-1").Stream).Group("g0").Build()
	if err := r.r.Client.Do(t.Context(), destroy).Error(); err != nil {
		t.Fatal(err)
	}
	r.publish("full-1", "y", 60, 1, 0)
	redistest.Want(t, "with room for a group", string(r.get("full-1", 60).Data), "y")
}
