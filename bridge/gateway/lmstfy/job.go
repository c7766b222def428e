package lmstfy

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Group is the one consumer group of a queue that is used through lmstfy's API.
const Group = "lmstfy"

// AttributePrefix stands before the name of an attribute where it is a header of the message.
const AttributePrefix = "attr-"

// Limits of a job, as lmstfy's server has them.
const (
	MaxData       = 1 << 20 // bytes
	MaxTries      = 65535
	MaxAttributes = 16
	MaxBulk       = 64
)

// Job is a job of lmstfy: what its server keeps of one.
type Job struct {
	Namespace, Queue string

	ID         string            // as lmstfy's server makes them: ParseID
	Data       []byte            // any bytes
	Attributes map[string]string // only where the ID begins with the mark of a version

	Delay   time.Duration // from when the message is taken; or
	Due     time.Time     // by the server's clock; zero = Delay counts
	Expires time.Time     // by the server's clock: ttl seconds after the job was published. Zero = never
	Tries   int           // deliveries that are left: 1 to 65,535
}

// QueueName returns the name of the queue that holds the jobs of a queue of lmstfy: both names with a colon between, which
// neither may hold. ErrInvalid: a name is empty or has another character than A-Z a-z 0-9 _ -, the queue begins with _, or both
// together have more than 127.
func QueueName(namespace, queue string) (string, error) {
	if !isName(namespace) {
		return "", lua.Invalid("namespace", namespace, "must be one or more of A-Z a-z 0-9 _ -")
	}
	if !isName(queue) || queue[0] == '_' {
		return "", lua.Invalid("queue", queue, "must be one or more of A-Z a-z 0-9 _ -, the first no _")
	}
	name := namespace + ":" + queue
	return name, lua.CheckQueue(name)
}

// SplitQueue is the reverse of QueueName; false: no queue of lmstfy has this name.
func SplitQueue(name string) (namespace, queue string, ok bool) {
	namespace, queue, ok = strings.Cut(name, ":")
	return namespace, queue, ok && isName(namespace) && isName(queue)
}

func isName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && r != '-' && r != '_'
	})
}

// Message returns the job as a message of its queue: the ID and the data as they are, tries as MaxAttempts, the end of its ttl as
// Expires, attributes as headers. What else the API tells of a job is in its ID. ErrInvalid.
func (j *Job) Message() (bridge.NewMessage, error) {
	if _, _, _, ok := ParseID(j.ID); !ok {
		return bridge.NewMessage{}, lua.Invalid("id", j.ID, "must be a ULID, or one with a 1 before it")
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

// attributesOf is what Message made headers of; nil where there are none.
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

// MaxTTR is the longest time in which a job can be done: what a consumer asks for beyond it is this.
const MaxTTR = stream.MaxVisibilityTimeout

// policy is what the group of such a queue needs: a ttr of any length, jobs that are ready again at once, and one try where a
// message says nothing.
func policy(p bridge.Policy) bridge.Policy {
	p.VisibilityTimeout, p.MaxAttempts, p.RetryDelays = MaxTTR, 1, bridge.NewDelays(stream.MinRetryDelay)
	p.RetryFor, p.MaxCrashes = 0, 0
	return p
}

// EnsureQueue gives the group of a queue, by its full name, the settings that it needs, where it has others: one round trip when
// it has these. It may be called at any time; messages are not touched.
func EnsureQueue(ctx context.Context, op *admin.Admin, name string) error {
	is, _, err := op.ReadPolicy(ctx, name, Group)
	if err != nil {
		return err
	}
	want := policy(is)
	if is == want {
		return nil
	}
	return op.WritePolicy(ctx, name, Group, admin.PolicyUpdate{VisibilityTimeout: &want.VisibilityTimeout,
		MaxAttempts: &want.MaxAttempts, RetryDelays: &want.RetryDelays, RetryFor: &want.RetryFor, MaxCrashes: &want.MaxCrashes})
}
