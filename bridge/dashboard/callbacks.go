package dashboard

import (
	"errors"
	"fmt"
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
	"github.com/duestream/duestream/internal/written"
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
	More    int              // targets that are not shown
	Edited  *admin.PushState // whose form is shown; nil = the form is for a new target
	Version string           // of the edited target, when the viewer opened the form
	Queues  []string         // whose targets the viewer may change
	MayAdd  bool             // the viewer may add a target, also of a queue that does not exist yet
	NewKey  *newKey          // nil = this request made no signing key
	Unread  string           // why the list of targets cannot be shown beside the key; "" = it is shown
	Faulty  []unreadQueue    // queues whose targets cannot be read
	IsTyped bool             // the form was sent with a fault, and shows what was typed
	samples []admin.QueueSample
}

// Backlog returns the figures of a target's group; nil if they are not known.
func (v callbacksView) Backlog(queue, group string) *admin.GroupSample {
	for _, sample := range v.samples {
		if sample.Queue != queue {
			continue
		}
		for i := range sample.Groups {
			if sample.Groups[i].Name == group {
				return &sample.Groups[i]
			}
		}
	}
	return nil
}

// shownTargets is the greatest number of rows of the page.
const shownTargets = 500

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

// readTargets reads the targets that the viewer may inspect. Viewers share what was read.
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
	}
	targets, faulty, err := readQueues(q, &q.targetsOf, queues, func(queue string) ([]admin.PushState, error) {
		return q.op.PushTargets(q.ctx, queue)
	})
	if err != nil {
		return err
	}
	v.Targets, v.Faulty = targets, faulty
	if q.query.Get("edit") != "" {
		at := slices.IndexFunc(targets, func(t admin.PushState) bool {
			return t.Queue == q.queue() && t.Group == q.query.Get("group")
		})
		if at >= 0 {
			v.Edited, v.Version = &targets[at], targets[at].Version
		}
	}
	if v.IsTyped {
		v.Version = q.query.Get("version")
	}
	if len(v.Targets) > 0 { // the page is of use without the figures
		v.samples, _ = q.samplesOf()
	}
	if len(v.Targets) > shownTargets {
		v.Targets, v.More = v.Targets[:shownTargets], len(v.Targets)-shownTargets
	}
	return nil
}

// samplesOf returns the last samples of all queues, which the overview shares.
func (q *request) samplesOf() ([]admin.QueueSample, error) {
	value, err := q.sample(q.liveSystem("", nil))
	if err != nil {
		return nil, err
	}
	return value.(systemSample).queues, nil
}

// storedTarget returns the target of a group; nil if it has none.
func (q *request) storedTarget(queue, group string) (*admin.PushState, error) {
	targets, err := q.op.PushTargets(q.ctx, queue)
	for i := range targets {
		if targets[i].Group == group {
			return &targets[i], err
		}
	}
	return nil, err
}

// errTargetChanged: the target differs from the one that the viewer has seen.
var errTargetChanged = fmt.Errorf("%w: somebody has changed the target meanwhile. Open the form again to see how",
	errConflict)

// setCallback adds or changes a target.
func setCallback(q *request) (done, error) {
	t, err := q.typedTarget()
	if err != nil {
		return done{}, err
	}
	stored, err := q.storedTarget(t.Queue, t.Group)
	if err != nil {
		return done{}, err
	}
	version := ""
	switch isEdit := q.query.Get("edit") != ""; {
	case isEdit && stored == nil:
		return done{}, fmt.Errorf("%w: somebody has removed the target meanwhile", errConflict)
	case isEdit:
		version = q.query.Get("version")
	case stored != nil:
		return done{}, inField("group", lua.Invalid("group", t.Group, "must be one without a target: edit that in the list"))
	}
	if err := q.checkReach(&t, stored); err != nil {
		return done{}, err
	}
	if err := admin.CheckPushTarget(t); err != nil {
		return done{}, err
	}
	change, err := q.op.ReplacePushTarget(q.ctx, t, version)
	switch {
	case errors.Is(err, admin.ErrTargetChanged):
		return done{}, errTargetChanged
	case err != nil:
		return done{}, err
	case change.Key != "":
		return done{shown: &newKey{t.Queue, t.Group, change.Key}}, nil
	case !change.Changed:
		return done{notice: "The target was stored like this already.", page: "callbacks"}, nil
	}
	return done{notice: "The target was changed. Processes use it within seconds.", page: "callbacks"}, nil
}

// typedTarget returns the target that the form names. The error has all faults of the form.
func (q *request) typedTarget() (admin.PushTarget, error) {
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
		d, err := q.formDuration(name)
		if err == nil && d == 0 && form(name) != "" {
			err = inField(name, lua.Invalid(name, form(name), "must be above 0; empty = the default"))
		}
		faults = append(faults, err)
		return d
	}
	t := admin.PushTarget{
		Queue: q.queue(), Group: q.query.Get("group"), URL: form("url"), AllowHTTP: form("allow_http") != "",
		Timeout: span("timeout"), Concurrency: whole("concurrency", 1), Failures: whole("failures", -1),
		Interval: span("interval"), MaxInterval: span("max_interval"),
		Rate: bridge.Rate(form("rate")), Burst: whole("burst", 0),
	}
	if strings.HasSuffix(t.URL, "?…") { // the form of an edited target shows its URL so
		faults = append(faults, &lua.InvalidError{Field: "url", Value: "?…",
			Rule: "stands for the part behind ?, which is secret and not shown: type it again"})
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
	var err error
	t.Headers, err = headersOf(q.query.Get("headers"))
	return t, errors.Join(append(faults, err)...)
}

// checkReach refuses a target that reaches more of the network than the viewer may allow. A process posts from inside
// its own network, and a dead letter shows the answer to a failed request. So a target with Networks or AllowHTTP can
// read addresses that only the process can reach. Only an operator of all queues may set these fields. Another operator
// must leave them, and the URL of such a target, as they are stored.
func (q *request) checkReach(t *admin.PushTarget, stored *admin.PushState) error {
	if q.may(access.Operate, "") {
		return nil
	}
	refused := func(field, value string) error {
		return inField(field, lua.Invalid(field, value, "may be set only with a token that may operate all queues"))
	}
	var before admin.PushTarget
	if stored != nil {
		before = stored.Target
	}
	switch {
	case len(t.Networks) > 0 && !slices.Equal(t.Networks, before.Networks):
		return refused("networks", joinTexts(t.Networks, netip.Prefix.String))
	case t.AllowHTTP && !before.AllowHTTP:
		return refused("allow_http", "1")
	}
	t.Networks, t.AllowHTTP = before.Networks, before.AllowHTTP
	if reachesMore := len(t.Networks) > 0 || t.AllowHTTP; reachesMore && !isSamePage(t.URL, before.URL) {
		return refused("url", "")
	}
	return nil
}

// isSamePage reports whether two URLs differ in their queries at most.
func isSamePage(a, b string) bool {
	a, _, _ = strings.Cut(a, "?")
	b, _, _ = strings.Cut(b, "?")
	return a == b
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

// rotateKey gives a target a new signing key, if nobody has changed the target since the viewer saw it.
func rotateKey(q *request) (done, error) {
	group := q.query.Get("group")
	key, err := q.op.RotatePushVersion(q.ctx, q.queue(), group, q.query.Get("version"))
	if errors.Is(err, admin.ErrTargetChanged) {
		return done{}, errTargetChanged
	}
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
		return written.Duration(t.Timeout)
	case "interval":
		return written.Duration(t.Interval)
	case "max_interval":
		return written.Duration(t.MaxInterval)
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
