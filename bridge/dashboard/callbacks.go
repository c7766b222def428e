package dashboard

import (
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// This file holds the page about the targets of callbacks: URLs to which the messages of a group are posted.

func callbacksSection() section {
	operate := []access.Verb{access.Operate}
	return section{
		nav: []navItem{{Path: "callbacks", Title: "Callbacks", Key: "c"}},
		pages: []page{
			{path: "callbacks", title: "Callbacks", template: "callbacks", show: showCallbacks},
		},
		actions: []action{
			{path: "do-set-callback", verbs: operate, form: "callbacks", do: setCallback},
			{path: "do-remove-callback", verbs: operate, do: removeCallback},
			{path: "do-rotate-key", verbs: operate, form: "callbacks", do: rotateKey},
			{path: "do-drop-key", verbs: operate, do: dropKey},
		},
	}
}

// callbacksView is the data of the page.
type callbacksView struct {
	Targets []admin.PushState
	Edited  *admin.PushState // whose form is shown; nil = the form is for a new target
	Queues  []string         // whose targets the viewer may change
	MayAdd  bool             // the viewer may add a target, also of a queue that does not exist yet
	NewKey  *newKey          // nil = this request made no signing key
	Unread  string           // why the list of targets cannot be shown beside the key; "" = it is shown
	IsTyped bool             // the form was sent with a fault, and shows what was typed
}

// newKey is a new signing key of a target, which is shown once.
type newKey struct{ Queue, Group, Key string }

func showCallbacks(q *request) (any, error) {
	v := callbacksView{IsTyped: q.r.Method == http.MethodPost && q.preview == nil}
	v.NewKey, _ = q.preview.(*newKey)
	if err := q.readTargets(&v); err != nil {
		if v.NewKey == nil {
			return nil, err
		}
		v.Unread = err.Error() // nobody can read the key again
	}
	return v, nil
}

// readTargets reads the targets that the viewer may inspect.
func (q *request) readTargets(v *callbacksView) error {
	queues, err := q.queues()
	if err != nil {
		return err
	}
	v.MayAdd = q.may(access.Operate, "")
	for _, queue := range queues {
		if q.may(access.Operate, queue) {
			v.MayAdd = true
			v.Queues = append(v.Queues, queue)
		}
		targets, err := q.op.PushTargets(q.ctx, queue)
		if err != nil {
			return err
		}
		for _, t := range targets {
			v.Targets = append(v.Targets, t)
			if q.query.Get("edit") != "" && t.Queue == q.queue() && t.Group == q.query.Get("group") {
				v.Edited = &t
			}
		}
	}
	return nil
}

// setCallback adds or changes a target.
func setCallback(q *request) (done, error) {
	form := func(name string) string { return strings.TrimSpace(q.query.Get(name)) }
	var faults []error
	whole := func(name string, least int) int {
		text := form(name)
		if text == "" {
			return 0
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < least {
			faults = append(faults, lua.Invalid(name, text, "must be a whole number, at least %d", least))
		}
		return n
	}
	span := func(name string) time.Duration {
		text := form(name)
		if text == "" {
			return 0
		}
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			faults = append(faults, lua.Invalid(name, text, "must be a duration like 500ms, 10s or 5m"))
		}
		return d
	}
	t := admin.PushTarget{
		Queue: q.queue(), Group: q.query.Get("group"), URL: form("url"), AllowHTTP: form("allow_http") != "",
		Timeout: span("timeout"), Concurrency: whole("concurrency", 1), Failures: whole("failures", -1),
		Interval: span("interval"), MaxInterval: span("max_interval"),
		Rate: bridge.Rate(form("rate")), Burst: whole("burst", 0),
	}
	for text := range strings.FieldsSeq(strings.ReplaceAll(form("networks"), ",", " ")) {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			faults = append(faults, lua.Invalid("networks", text, "must be like 10.1.0.0/16"))
			continue
		}
		t.Networks = append(t.Networks, network)
	}
	for text := range strings.FieldsSeq(strings.ReplaceAll(form("dead_status"), ",", " ")) {
		code, err := strconv.Atoi(text)
		if err != nil {
			faults = append(faults, lua.Invalid("dead_status", text, "must be a status code, like 404"))
			continue
		}
		t.DeadStatus = append(t.DeadStatus, code)
	}
	if err := errors.Join(faults...); err != nil {
		return done{}, err
	}
	var err error
	if t.Headers, err = headersOf(q.query.Get("headers")); err != nil {
		return done{}, err
	}
	if err := admin.CheckPushTarget(t); err != nil {
		return done{}, err
	}
	change, err := q.op.SetPushTarget(q.ctx, t)
	switch {
	case err != nil:
		return done{}, err
	case change.Key != "":
		return done{shown: &newKey{t.Queue, t.Group, change.Key}}, nil
	case !change.Changed:
		return done{notice: "The target was stored like this already.", page: "callbacks"}, nil
	}
	return done{notice: "The target was changed. Processes use it within seconds.", page: "callbacks"}, nil
}

// headersOf reads headers, one "name: value" on each line.
func headersOf(text string) (map[string]string, error) {
	headers := map[string]string{}
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if name == "" || value == "" {
			return nil, lua.Invalid("headers", cut(strings.TrimSpace(line), 60), "must be name: value on each line")
		}
		headers[name] = value
	}
	if len(headers) == 0 {
		return nil, nil
	}
	return headers, nil
}

// removeCallback removes a target. Messages go on waiting for its group.
func removeCallback(q *request) (done, error) {
	err := q.op.RemovePushTarget(q.ctx, q.queue(), q.query.Get("group"))
	return done{notice: "The target was removed. Its group stays, and messages wait for it.", page: "callbacks"}, err
}

// rotateKey gives a target a new signing key.
func rotateKey(q *request) (done, error) {
	group := q.query.Get("group")
	key, err := q.op.RotatePushKey(q.ctx, q.queue(), group, "")
	if err != nil {
		return done{}, err
	}
	return done{shown: &newKey{q.queue(), group, key}}, nil
}

// dropKey removes the old signing key of a target.
func dropKey(q *request) (done, error) {
	err := q.op.DropOldPushKey(q.ctx, q.queue(), q.query.Get("group"))
	return done{notice: "Requests are signed with the newest key alone.", page: "callbacks"}, err
}

// AllowsHTTP reports whether the box for a URL without TLS is ticked: as it was sent, or as the edited target has it.
func (v callbacksView) AllowsHTTP(typed string) bool {
	if v.IsTyped || v.Edited == nil {
		return typed != ""
	}
	return v.Edited.AllowHTTP
}

// Value returns the text of a field of the form: the typed text, or if none was sent the setting of the edited target.
// The values of headers are secret, so the field of the headers holds only their names.
func (v callbacksView) Value(typed, name string) string {
	if v.IsTyped || v.Edited == nil {
		return typed
	}
	t := v.Edited
	count := func(n int) string {
		if n == 0 {
			return ""
		}
		return strconv.Itoa(n)
	}
	switch name {
	case "url":
		return t.URL
	case "timeout":
		return t.Timeout.String()
	case "interval":
		return t.Interval.String()
	case "max_interval":
		return t.MaxInterval.String()
	case "concurrency":
		return count(t.Concurrency)
	case "failures":
		return count(t.Failures)
	case "burst":
		return count(t.Burst)
	case "headers":
		names := slices.Sorted(maps.Keys(t.Headers))
		for i, name := range names {
			names[i] = name + ": "
		}
		return strings.Join(names, "\n")
	case "rate":
		return string(t.Rate)
	case "networks":
		return joinTexts(t.Networks, netip.Prefix.String)
	case "dead_status":
		return joinTexts(t.DeadStatus, strconv.Itoa)
	}
	return ""
}

// joinTexts returns the texts of values, separated by spaces.
func joinTexts[T any](values []T, text func(T) string) string {
	all := make([]string, len(values))
	for i, value := range values {
		all[i] = text(value)
	}
	return strings.Join(all, " ")
}
