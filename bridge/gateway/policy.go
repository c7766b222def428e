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

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

const mostSettings = 64 << 10 // bytes of a body of settings, or of a recurrence without its payload

func readPolicy(c *call) (int, any, error) {
	text, err := c.currentPolicy()
	if err != nil {
		return 0, nil, err
	}
	c.w.Header().Set("ETag", etag(text))
	return http.StatusOK, text, nil
}

// currentPolicy returns the policy in force, as JSON.
func (c *call) currentPolicy() (json.RawMessage, error) {
	group, is := c.query["group"]
	if is {
		if err := lua.CheckGroup(group); err != nil {
			return nil, err
		}
	}
	if err := c.op.CheckKnown(c.Ctx, c.queue); err != nil {
		return nil, err
	}
	p, _, err := c.op.ReadPolicy(c.Ctx, c.queue, group)
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

// changePolicy changes the settings in the body. With If-Match it changes them only if the policy is still the one that
// the caller has read. Of several callers of one gateway with the same tag only one succeeds. Callers of two gateways
// may both succeed.
func changePolicy(c *call) (int, any, error) {
	text, err := c.Body(mostSettings)
	if err != nil {
		return 0, nil, err
	}
	update, err := parsePolicy(text)
	if err != nil {
		return 0, nil, err
	}
	defer c.policyLocks.Lock(c.queue)()
	current, err := c.currentPolicy()
	if err != nil {
		return 0, nil, err
	}
	if tags := c.R.Header.Values("If-Match"); len(tags) > 0 && !matchesTag(tags, etag(current)) {
		return 0, nil, &problem{Type: typeChanged, Status: http.StatusPreconditionFailed,
			Detail: "the policy has changed since the version in If-Match: read it again"}
	}
	if err := c.named().WritePolicy(c.Ctx, c.queue, c.query["group"], update); err != nil {
		return 0, nil, err
	}
	return readPolicy(c)
}

// matchesTag reports whether one of the If-Match headers names the tag, or *.
func matchesTag(headers []string, tag string) bool {
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
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		s, is := policy.Named(name)
		if !is || isPause(s) {
			errs = append(errs, lua.Invalid(name, "", "must be one of: %s", strings.Join(changeable(), " ")))
			continue
		}
		if string(raw[name]) == "null" {
			u.Clear = append(u.Clear, name)
			continue
		}
		value, err := s.ParseJSON(raw[name])
		if err != nil {
			errs = append(errs, lua.Invalid(name, string(raw[name]), "must have the JSON type that GET shows"))
			continue
		}
		s.Put(&u, value)
	}
	return u, errors.Join(errs...)
}

// isPause reports whether pause and resume change the setting, which have routes of their own.
func isPause(s policy.Setting) bool {
	return s.Name == policy.SettingHeld || s.Name == policy.SettingHeldWorkers
}

// changeable returns the names of the settings that a request can change, sorted.
func changeable() (names []string) {
	for _, s := range policy.Settings() {
		if !isPause(s) {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return names
}
