package lua

import (
	"net/url"
	"strings"
)

// DefaultPrefix starts every key unless another one is configured. Another prefix is another namespace.
const DefaultPrefix = "duestream"

// Keys holds the key names of one queue, or of one of its partitions. All have the hash tag {queue}, so a queue is in
// one cluster slot.
type Keys struct {
	Due     string // zset: member → due time, Unix ms
	Payload string // hash: member → payload bytes; absent means empty
	Meta    string // hash: member → JSON object of strings with every other field; only when there is one
	Stream  string // stream: ready and pending entries of all groups
	Dead    string // stream: dead letters of all groups
	Wake    string // stream of length 1: an earlier due time appeared
	Policy  string // hash: settings of the queue
	Seen    string // zset: caller-chosen ID → end of its dedup window
	Calm    string // hash: when bridges looked at pending entries, and when they were away
	History string // stream: what happened to messages, if the policy keeps a history
	Rate    string // string: when the bucket of the release rate is full again, Unix µs; expires then
	Turns   string // zset: for each ordering key, its messages in flight and its messages in line

	Recurring string // hash: name of a recurrence → its spec, JSON; in partition 0, as Planned
	Planned   string // hash: name of a recurrence → its plan

	Leases string // zset: a delivery whose time is shorter than the visibility timeout → the end of that time, Unix ms

	Push string // hash: group → its push target, JSON; in partition 0

	Changes string // stream: the last changes of settings, with their authors; in partition 0; expires after a year

	Progress string // hash: pending entry and group → the progress of the attempt

	Actor string // no key: the name of the client, bridge, worker or operator, for the history; "" = not given
}

// NewKeys returns the key names of a queue, or of one of its partitions. It does not check the names: see CheckPrefix,
// CheckQueue and PartitionName.
func NewKeys(prefix, queue string) Keys {
	base := prefix + ":{" + queue + "}:"
	return Keys{
		Due: base + "due", Payload: base + "payload", Meta: base + "meta", Stream: base + "stream",
		Dead: base + "dead", Wake: base + "wake", Policy: base + "policy", Seen: base + "seen",
		Calm: base + "calm", Recurring: base + "recurring", Planned: base + "planned", History: base + "history",
		Rate: base + "rate", Turns: base + "turns", Leases: base + "leases", Push: base + "push",
		Changes:  base + "changes",
		Progress: base + "progress",
	}
}

// All returns the names, without those that all queues share and without Actor.
func (k Keys) All() []string {
	return []string{k.Due, k.Payload, k.Meta, k.Stream, k.Dead, k.Wake, k.Policy, k.Seen, k.Calm, k.Recurring, k.Planned,
		k.History, k.Rate, k.Turns, k.Leases, k.Push, k.Changes, k.Progress}
}

// GroupRate returns the key of the token bucket for the rate that all workers of a group share. It is a string, `<full
// again at, Unix µs> <µs per handler>`, and expires when the bucket is full.
func (k Keys) GroupRate(group string) string { return k.Rate + ":" + group }

// Once returns the key of the record of an effect: of a group, by a text that identifies the message. It is a string,
// `<last token> <state> <claimer>`, and expires: see script claim. It is in partition 0, because a message may come
// again in another partition.
func (k Keys) Once(group, text string) string {
	return strings.TrimSuffix(k.Due, "due") + "once:" + encoded(group) + ":" + text
}

// encoded percent-encodes the name of a group, so that it has no colon: all bytes but A-Z a-z 0-9 - _ . ~.
func encoded(group string) string { return strings.ReplaceAll(url.QueryEscape(group), "+", "%20") }

// As returns the keys with the actor that uses them: the name of a client, bridge, worker or operator, for the history.
func (k Keys) As(actor string) Keys {
	k.Actor = actor
	return k
}

// Globals holds the key names that all queues of a prefix share.
type Globals struct {
	Queues   string // hash: queue → its partition counts
	Defaults string // hash: the policy that bridges and workers share
	Bridges  string // zset: live bridge → last heartbeat, Unix ms
	Wake     string // stream of length 1: a queue was added, or the defaults changed
	Tokens   string // hash: SHA-256 of a secret, in hex → what its holder may do at the gateway, JSON
}

// NewGlobals returns the shared key names of a prefix.
func NewGlobals(prefix string) Globals {
	return Globals{
		Queues: prefix + ":queues", Defaults: prefix + ":defaults",
		Bridges: prefix + ":bridges", Wake: prefix + ":wake", Tokens: prefix + ":tokens",
	}
}

// Bucket returns the key of the token bucket for the rate of an access token. It is a string, `<full again at, Unix
// µs> <µs per call>`, and expires when the bucket is full.
func (g Globals) Bucket(digest string) string { return g.Tokens + ":" + digest }

// QueueOf returns the queue and the partition whose schedule is at key. ok is false if key is not a schedule of this
// prefix.
func QueueOf(prefix, key string) (queue string, partition int, ok bool) {
	rest, ok := strings.CutPrefix(key, prefix+":{")
	if !ok {
		return "", 0, false
	}
	name, ok := strings.CutSuffix(rest, "}:due")
	if !ok {
		return "", 0, false
	}
	return SplitPartition(name)
}
