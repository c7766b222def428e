package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
)

// as returns a viewer with a token of this name.
func (r *rig) as(name string, verbs []access.Verb, queues ...string) *viewer {
	r.T.Helper()
	secret, err := r.op.AddToken(r.T.Context(), access.Token{Name: name, Verbs: verbs, Queues: queues})
	if err != nil {
		r.T.Fatal(err)
	}
	v := r.stranger()
	status, _ := v.post("login", url.Values{"token": {secret}})
	redistest.Want(r.T, "status of the login", status, http.StatusOK)
	return v
}

// Operators asked who had paused a queue or changed its rate, and since when. No page told it.
func TestQueueTellsWhoPausedItAndWhoChangedItsSettings(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Fill(1)
	r.Policy(map[string]string{"history": "100"})
	ana, ben := r.as("ana", access.Verbs(), r.Queue), r.as("ben", operate, r.Queue)
	queue := url.Values{"queue": {r.Queue}}
	page := "queue?queue=" + r.Queue
	_, text := ana.get(page)
	contains(t, text, "no change is recorded")

	_, text = ana.get(page + "&tab=settings&change=1&rate=300/m&group=")
	ana.post("do-queue-settings", hiddenFields(t, text, "do-queue-settings"))
	ben.post("do-queue-pause", queue)
	ben.eventuallyShows(page, "The queue is paused by token ben since <time")
	_, text = ana.get(page + "&tab=settings")
	contains(t, text, "Last change: <code>held</code> from\nnot set to true, by token ben,", `id="changes">`,
		`<td class="text wrap">token ana</td>`, `<td class="text wrap">not set</td><td class="text wrap">300/m</td>`)

	ana.post("do-queue-create", url.Values{"queue": {r.Queue}, "id": {"made"}, "in": {"1h"}})
	story := ana.eventuallyShows("message?queue="+r.Queue+"&id=made", "token ana")
	contains(t, story, "Scheduled for")

	ana.post("do-queue-resume", queue)
	ben.eventuallyShows(page, `formaction="do-queue-pause"`) // the dashboard has noticed the resume
	// As redis-cli pauses: it leaves no record, and the newest record is of the resume.
	r.Policy(map[string]string{"held": "1"})
	text = ben.eventuallyShows(page, "The queue is paused: scheduled")
	lacks(t, text, "paused by")
}

// A list that set_policy has cut must not look like a shorter list.
func TestARecordedValueThatIsCutIsMarked(t *testing.T) {
	t.Parallel()
	list := strings.Repeat("1000,", mostRecorded)
	redistest.Want(t, "a short list", recordedText("retry_delays_ms", "1000,2000"), "1s,2s")
	redistest.Want(t, "a list that is cut", recordedText("retry_delays_ms", list[:mostRecorded]), list[:mostRecorded]+"…")
	redistest.Want(t, "a text that is cut", recordedText("other", strings.Repeat("é", mostRecorded)[1:mostRecorded+1]),
		strings.Repeat("é", mostRecorded/2-1)+"…")
}
