package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

const mostSettings = 64 << 10 // bytes of a body of settings, or of a recurrence without its payload

func readPolicy(c *call) (int, any, error) {
	text, err := c.policyNow()
	if err != nil {
		return 0, nil, err
	}
	c.w.Header().Set("ETag", etag(text))
	return http.StatusOK, text, nil
}

// policyNow returns the policy in force.
func (c *call) policyNow() (json.RawMessage, error) {
	group, is := c.query["group"]
	if is {
		if err := lua.CheckGroup(group); err != nil {
			return nil, err
		}
	}
	if err := c.op.CheckKnown(c.ctx, c.queue); err != nil {
		return nil, err
	}
	p, _, err := c.op.ReadPolicy(c.ctx, c.queue, group)
	if err != nil {
		return nil, err
	}
	return json.Marshal(p)
}

// etag returns the entity tag of a text: a hash of it.
func etag(text []byte) string {
	sum := sha256.Sum256(text)
	return `"` + hex.EncodeToString(sum[:12]) + `"`
}

// changePolicy changes the settings in the body. With If-Match it does so only if the policy is still the one that the
// caller has read. Two callers of one gateway never both succeed with the same tag; callers of two gateways may.
func changePolicy(c *call) (int, any, error) {
	text, err := c.body(mostSettings)
	if err != nil {
		return 0, nil, err
	}
	update, err := parsePolicy(text)
	if err != nil {
		return 0, nil, err
	}
	defer c.policy.Lock(c.queue)()
	now, err := c.policyNow()
	if err != nil {
		return 0, nil, err
	}
	if tags := c.r.Header.Values("If-Match"); len(tags) > 0 && !matched(tags, etag(now)) {
		return 0, nil, &problem{Type: typeChanged, Status: http.StatusPreconditionFailed,
			Detail: "the policy is not what If-Match names: read it again"}
	}
	if err := c.op.WritePolicy(c.ctx, c.queue, c.query["group"], update); err != nil {
		return 0, nil, err
	}
	return readPolicy(c)
}

func matched(headers []string, tag string) bool {
	for _, header := range headers {
		for one := range strings.SplitSeq(header, ",") {
			if one = strings.TrimSpace(one); one == "*" || one == tag {
				return true
			}
		}
	}
	return false
}

// parsePolicy reads settings, by the names that readPolicy answers with. The value null resets a setting to the
// default.
func parsePolicy(text []byte) (u admin.PolicyUpdate, err error) {
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return u, malformed("the body is not a JSON object")
	}
	raw := map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &raw); err != nil {
		return u, malformed("the body is not a JSON object")
	}
	if len(raw) == 0 {
		return u, lua.Invalid("policy", "", "must name a setting")
	}
	settings := map[string]func(json.RawMessage) error{
		admin.SettingVisibility: millisTo(&u.VisibilityTimeout), admin.SettingMaxAttempts: valueTo(&u.MaxAttempts),
		admin.SettingRetryMin: millisTo(&u.RetryMin), admin.SettingRetryMax: millisTo(&u.RetryMax),
		admin.SettingRetryDelays: valueTo(&u.RetryDelays), admin.SettingRetryFor: millisTo(&u.RetryFor),
		admin.SettingMaxSnoozes: valueTo(&u.MaxSnoozes), admin.SettingMaxCrashes: valueTo(&u.MaxCrashes),
		admin.SettingHandlerTimeout: millisTo(&u.HandlerTimeout),
		admin.SettingRate:           valueTo(&u.Rate), admin.SettingBurst: valueTo(&u.Burst),
		admin.SettingFreeRetries: valueTo(&u.FreeRetries), admin.SettingReadyLimit: valueTo(&u.ReadyLimit),
		admin.SettingHistory: valueTo(&u.History), admin.SettingHistoryAge: millisTo(&u.HistoryAge),
		admin.SettingKeyFailure: valueTo(&u.KeyFailure),
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		set, is := settings[name]
		switch {
		case !is:
			errs = append(errs, lua.Invalid(name, "", "must be one of: %s",
				strings.Join(slices.Sorted(maps.Keys(settings)), " ")))
		case string(raw[name]) == "null":
			u.Clear = append(u.Clear, name)
		case set(raw[name]) != nil:
			errs = append(errs, lua.Invalid(name, string(raw[name]), "must be of the kind that an answer shows"))
		}
	}
	return u, errors.Join(errs...)
}

func valueTo[T any](into **T) func(json.RawMessage) error {
	return func(text json.RawMessage) error {
		*into = new(T)
		return json.Unmarshal(text, *into)
	}
}

func millisTo(into **time.Duration) func(json.RawMessage) error {
	return func(text json.RawMessage) error {
		var ms int64
		if err := json.Unmarshal(text, &ms); err != nil {
			return err
		}
		d := time.Duration(ms) * time.Millisecond
		if d.Milliseconds() != ms {
			return bridge.ErrInvalid
		}
		*into = &d
		return nil
	}
}
