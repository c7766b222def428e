package gateway

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// recurring is the JSON form of a recurrence and its state.
type recurring struct {
	Queue   string            `json:"queue"`
	Name    string            `json:"name"`
	Spec    bridge.Recurrence `json:"spec"`
	Next    []time.Time       `json:"next"`
	Last    time.Time         `json:"last,omitzero"`
	LastID  string            `json:"last_id,omitempty"`
	Planned int               `json:"planned"`
	Problem string            `json:"problem,omitempty"`
}

func newRecurring(s bridge.RecurrenceState) recurring {
	return recurring{Queue: s.Spec.Queue, Name: s.Spec.Name, Spec: s.Spec, Next: append([]time.Time{}, s.Next...),
		Last: s.Last, LastID: s.LastID, Planned: s.Used, Problem: s.Problem}
}

func listRecurrences(c *call) (int, any, error) {
	states, err := c.op.Recurrences(c.Ctx, c.queue)
	list := []recurring{}
	for _, s := range states {
		list = append(list, newRecurring(s))
	}
	return http.StatusOK, map[string]any{"recurrences": list}, err
}

func showRecurrence(c *call) (int, any, error) {
	if err := admin.CheckRecurrence(c.id()); err != nil {
		return 0, nil, err
	}
	s, err := c.op.Recurrence(c.Ctx, c.queue, c.id())
	return http.StatusOK, newRecurring(s), err
}

// putRecurrence adds a recurrence, or replaces the recurrence of the same name.
func putRecurrence(c *call) (int, any, error) {
	text, err := c.Body(mostSettings + 2*c.cfg.MaxPayload)
	if err != nil {
		return 0, nil, err
	}
	r, err := parseRecurrence(text)
	if err != nil {
		return 0, nil, err
	}
	if r.Queue != "" && r.Queue != c.queue {
		return 0, nil, lua.Invalid("queue", r.Queue, "must be the queue in the path, or left out")
	}
	if r.Name != "" && r.Name != c.id() {
		return 0, nil, lua.Invalid("name", r.Name, "must be the name in the path, or left out")
	}
	if len(r.Payload) > c.cfg.MaxPayload {
		return 0, nil, tooLarge(int64(c.cfg.MaxPayload))
	}
	r.Queue, r.Name = c.queue, c.id()
	did, err := c.op.Recur(c.Ctx, r)
	if err != nil {
		return 0, nil, err
	}
	status, body, err := showRecurrence(c)
	if did.Added {
		status = http.StatusCreated
	}
	return status, body, err
}

func parseRecurrence(text []byte) (r bridge.Recurrence, err error) {
	if text = bytes.TrimSpace(text); !bytes.HasPrefix(text, []byte("{")) || !json.Valid(text) {
		return r, malformed("the body is not a JSON object")
	}
	if err := checkElements(text, newMessageElements()); err != nil {
		return r, err
	}
	err = r.UnmarshalJSON(text)
	return r, err
}

func removeRecurrence(c *call) (int, any, error) {
	if err := admin.CheckRecurrence(c.id()); err != nil {
		return 0, nil, err
	}
	n, err := c.op.RemoveRecurrence(c.Ctx, c.queue, c.id())
	return http.StatusOK, map[string]any{"taken_back": n}, err
}

func pauseRecurrence(c *call) (int, any, error)  { return c.holdRecurrence(true) }
func resumeRecurrence(c *call) (int, any, error) { return c.holdRecurrence(false) }

func (c *call) holdRecurrence(paused bool) (int, any, error) {
	if err := admin.CheckRecurrence(c.id()); err != nil {
		return 0, nil, err
	}
	did, err := c.op.PauseRecurrence(c.Ctx, c.queue, c.id(), paused)
	return http.StatusOK, changed{did}, err
}

func runRecurrence(c *call) (int, any, error) {
	if err := admin.CheckRecurrence(c.id()); err != nil {
		return 0, nil, err
	}
	got, err := c.op.RunRecurrence(c.Ctx, c.queue, c.id())
	return http.StatusCreated, receipt{ID: got.ID, Due: got.Due}, err
}
