package lmstfy

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// Group is the only consumer group of a queue that is used through lmstfy's API.
const Group = "lmstfy"

// AttributePrefix begins the name of a message header that holds an attribute.
const AttributePrefix = "attr-"

// Limits of a job, the same as those of lmstfy's server.
const (
	MaxData       = 1 << 20 // bytes
	MaxTries      = 65535
	MaxAttributes = 16
	MaxBulk       = 64
)

// Job is a job of lmstfy, with the values that lmstfy's server stores.
type Job struct {
	Namespace, Queue string

	ID         string            // in the form of lmstfy's server: see ParseID
	Data       []byte            // any bytes
	Attributes map[string]string // only if the ID begins with a 1: see ParseID

	Delay   time.Duration // counted from when the message is stored; ignored if Due is set
	Due     time.Time     // by the server's clock; zero = Delay counts
	Expires time.Time     // by the server's clock: ttl seconds after the job was published; zero = never
	Tries   int           // remaining deliveries: 1 to 65,535
}

// QueueName returns the name of the duestream queue for a queue of lmstfy: NAMESPACE:QUEUE. ErrInvalid: a name is
// empty or has a character other than A-Z a-z 0-9 _ -, the queue begins with _, or both together have more than 127
// characters.
func QueueName(namespace, queue string) (string, error) {
	if !isName(namespace) {
		return "", lua.Invalid("namespace", namespace, "must be one or more of A-Z a-z 0-9 _ -")
	}
	if !isName(queue) || queue[0] == '_' {
		return "", lua.Invalid("queue", queue, "must be one or more of A-Z a-z 0-9 _ -, and not begin with _")
	}
	name := namespace + ":" + queue
	return name, lua.CheckQueue(name)
}

// SplitQueue is the reverse of QueueName. It returns false if no queue of lmstfy can have this name.
func SplitQueue(name string) (namespace, queue string, ok bool) {
	namespace, queue, ok = strings.Cut(name, ":")
	return namespace, queue, ok && isName(namespace) && isName(queue)
}

func isName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && r != '-' && r != '_'
	})
}

// Message returns the job as a message of its queue: ID and data unchanged, tries as MaxAttempts, the end of the ttl as
// Expires, attributes as headers. The ID holds the other values that the API shows. ErrInvalid: the ID or Tries is not
// valid.
func (j *Job) Message() (bridge.NewMessage, error) {
	if _, _, _, ok := ParseID(j.ID); !ok {
		return bridge.NewMessage{}, lua.Invalid("id", j.ID, "must be a ULID, or the digit 1 and a ULID")
	}
	if j.Tries < 1 || j.Tries > MaxTries {
		return bridge.NewMessage{}, lua.Invalid("tries", strconv.Itoa(j.Tries), "must be between 1 and %d", MaxTries)
	}
	m := bridge.NewMessage{ID: j.ID, Payload: j.Data, MaxAttempts: j.Tries, Delay: j.Delay, At: j.Due, Expires: j.Expires}
	for name, value := range j.Attributes {
		if m.Headers == nil {
			m.Headers = make(map[string]string, len(j.Attributes))
		}
		m.Headers[AttributePrefix+name] = value
	}
	return m, nil
}

// attributesOf returns the attributes in a message's headers, or nil if there are none. It is the reverse of Message.
func attributesOf(headers map[string]string) map[string]string {
	var found map[string]string
	for name, value := range headers {
		if name, is := strings.CutPrefix(name, AttributePrefix); is {
			if found == nil {
				found = map[string]string{}
			}
			found[name] = value
		}
	}
	return found
}

// MaxTTR is the longest ttr. A longer one is shortened to it.
const MaxTTR = policy.MaxVisibilityTimeout

// jobPolicy returns p with the settings that this API needs: a ttr up to MaxTTR, retries without a delay, and one try
// for a message without max_attempts.
func jobPolicy(p bridge.Policy) bridge.Policy {
	p.VisibilityTimeout, p.MaxAttempts, p.RetryDelays = MaxTTR, 1, bridge.NewDelays(policy.MinRetryDelay)
	p.RetryFor, p.MaxCrashes = 0, 0
	return p
}

// EnsureQueue writes the settings that this API needs into the policy of Group, for the queue with the given full name,
// if the policy differs. It costs one round trip if the policy is right. It may be called at any time, and does not
// touch messages.
func EnsureQueue(ctx context.Context, op *admin.Admin, name string) error {
	current, _, err := op.ReadPolicy(ctx, name, Group)
	if err != nil {
		return err
	}
	if current == jobPolicy(current) {
		return nil
	}
	return writeSettings(ctx, op, name)
}

// writeSettings writes the settings of EnsureQueue into every partition.
func writeSettings(ctx context.Context, op *admin.Admin, name string) error {
	want := jobPolicy(bridge.Policy{})
	return op.WritePolicy(ctx, name, Group, admin.PolicyUpdate{VisibilityTimeout: &want.VisibilityTimeout,
		MaxAttempts: &want.MaxAttempts, RetryDelays: &want.RetryDelays, RetryFor: &want.RetryFor, MaxCrashes: &want.MaxCrashes})
}
