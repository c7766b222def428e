package doctor

import (
	"fmt"
	"strings"
)

// Severity is how bad a finding is.
type Severity int

// Severities. A Note is worth knowing. A Warning will cause trouble later. With an Error, messages are lost or not
// delivered.
const (
	Note Severity = iota
	Warning
	Error
)

var severities = []string{"note", "warning", "error"}

func (s Severity) String() string { return severities[s] }

// MarshalText writes note, warning or error.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (s *Severity) UnmarshalText(text []byte) error {
	for i, name := range severities {
		if name == string(text) {
			*s = Severity(i)
			return nil
		}
	}
	return fmt.Errorf("severity %q: must be note, warning or error", text)
}

// Check is a kind of defect that the doctor looks for. Code and Name never change.
type Check struct {
	Code     string
	Name     string
	Severity Severity
	Finds    string // the defect, in the singular
	Why      string // why it matters
	Do       string // what to do; {queue}, {key}, {group} and {n} are replaced by those of the finding
	Mends    string // what a repair does; "" = there is none
}

// Checks returns all checks, in order of their codes.
func Checks() []Check {
	list := make([]Check, len(checks))
	for i, c := range checks {
		list[i] = *c
	}
	return list
}

var checks []*Check

// check declares a check. Without mends it has no repair.
func check(code, name string, severity Severity, finds, why, do string, mends ...string) *Check {
	c := &Check{code, name, severity, finds, why, do, strings.Join(mends, "")}
	checks = append(checks, c)
	return c
}

// The server.
var (
	oldServer = check("D101", "old-server", Error, "the server is older than Redis 7.0 or Valkey 7.2",
		"scripts and workers need commands that it does not know", "upgrade the server")
	evicts = check("D102", "evicts", Error, "`maxmemory-policy` is not `noeviction`",
		"when memory is full the server deletes whole queues; bridges refuse to serve",
		"redis-cli CONFIG SET maxmemory-policy noeviction, and set it in redis.conf")
	noLimit = check("D103", "no-memory-limit", Note, "`maxmemory` is not set, or is more than the machine has",
		"the kernel kills a server that needs more than there is, which loses more than one that refuses new messages",
		"redis-cli CONFIG SET maxmemory 4gb, or what the machine can give")
	nearlyFull = check("D104", "nearly-full", Warning, "90 % of `maxmemory` or more is used",
		"when it is full new messages are refused",
		"duestream stats says what holds memory: read the backlog, destroy forgotten groups, purge dead letters, raise maxmemory")
	noAOF = check("D105", "no-append-only-file", Warning, "`appendonly` is off",
		"a crash loses every message since the last snapshot", "redis-cli CONFIG SET appendonly yes, and set it in redis.conf")
	noFsync = check("D106", "never-synced", Warning, "`appendfsync` is `no`",
		"a power failure loses what the kernel had not written yet: half a minute and more",
		"redis-cli CONFIG SET appendfsync everysec, and set it in redis.conf")
	persistence = check("D107", "cannot-persist", Error,
		"the last write of the append-only file, or the last snapshot, failed",
		"the server may refuse all writes (MISCONF), and loses more in a crash", "look at the server's log, and at its disk")
	replicaBehind = check("D108", "replica-behind", Warning,
		"a replica is not online, or was not heard of for more than 10 s",
		"a failover to it loses what it does not have", "look at the replica: redis-cli INFO replication")
	tooFewReplicas = check("D109", "too-few-replicas", Error,
		"fewer replicas are good than `min-replicas-to-write` asks for",
		"the server refuses all writes, also those that deliver and acknowledge",
		"connect the replicas, or redis-cli CONFIG SET min-replicas-to-write 0")
	needsReplicas = check("D110", "needs-replicas", Note, "`min-replicas-to-write` is not 0",
		"without a good replica all writes are refused, also those that deliver and acknowledge",
		"nothing, if that is what you want (docs/operations/durability.md)")
	isReplica = check("D111", "is-replica", Error, "the server is a replica",
		"it takes no writes", "use the URL of the master, or of the sentinels with ?master_set=")
	clockApart = check("D112", "clock-apart", Warning,
		"the clocks of the server and of this machine are more than 2 s apart",
		"due times count by the server's clock: if it is the wrong one, all messages are early or late by that",
		"compare both with a third, and mend time synchronisation on the wrong one; slew it, do not step it")
	notChecked = check("D113", "not-checked", Warning,
		"the user may not run `INFO`, so the settings of the server could not be checked",
		"it may delete queues when it is full, lose messages in a crash, or be too old",
		"run duestream doctor as a user that has +info: docs/operations/users.md")
	notLookedAt = check("D114", "not-looked-at", Note, "the user lacks a right that a look needs",
		"what is wrong there is not found",
		"grant it, or run duestream doctor as a user that has it: docs/operations/users.md")
	full = check("D115", "full", Error, "as much as `maxmemory` or more is used, and the server deletes nothing",
		"new messages are refused (OOM); what was scheduled is delivered, retried, acknowledged and freed as ever",
		"redis-cli CONFIG SET maxmemory, to more than it has, if the machine has it; "+
			"then Redis is full in docs/operations/runbook.md")
)

// Bridges and the registry.
var (
	noBridge = check("D201", "no-bridge", Error, "no bridge has sent a heartbeat in the last 5 s",
		"nothing becomes ready, is reclaimed or freed", "duestream serve")
	noToken = check("D202", "no-wake-token", Note, "messages are scheduled, and the wake stream is empty",
		"producers add no token, so messages may be late by up to 5 s",
		"have the producer add it: docs/reference/protocol.md, section 7",
		"adds a token")
	manyTokens = check("D203", "wake-tokens", Warning, "a wake stream is longer than 1",
		"a producer adds tokens without `MAXLEN 1`: the stream grows for ever", "have the producer use XADD {key} MAXLEN 1",
		"adds a token with `MAXLEN 1`")
	unregistered = check("D204", "unregistered", Warning, "a queue has keys, and nobody registered it",
		"bridges find it by a slow scan only, and tools do not list it", "duestream queue partitions {queue} {n}",
		"registers it, with the partitions that a growth has prepared")
	badRegistry = check("D205", "bad-registry", Warning,
		"an entry of the registry is no queue's name, or no list of partition counts",
		"what does not count is passed over: messages in partitions that are meant may not be drained",
		"register the counts anew: duestream queue partitions <queue> <n>; redis-cli HDEL {registry} <name> for a name that "+
			"is none", "writes the list without what does not count; leaves names alone")
	uncountedPartition = check("D206", "partition-beyond", Error, "a partition beyond the registered count holds messages",
		"no worker reads it; a bridge takes scheduled messages out of it that have no namesake where they belong",
		"duestream doctor --repair; to keep the partition, duestream queue partitions {queue} {n}",
		"moves scheduled messages to where they belong; has the queue grow to it when it holds entries or dead letters, "+
			"and the queue no messages with a key")
	partitionGroup = check("D207", "partition-without-group", Error, "a partition lacks a group that another one has",
		"the group does not get what becomes ready there, and it is freed without it", "duestream queue partitions {queue} {n}",
		"creates the group there, at 0")
	partitionPolicy = check("D208", "partition-policy", Warning, "a partition has other settings than partition 0",
		"its messages are served by other rules", "duestream queue partitions {queue} {n}", "writes the settings of partition 0")
	foreignKey = check("D209", "foreign-key", Note, "keys begin with the prefix, and are none of duestream's",
		"another program, or another prefix that begins with this one, may collide with it",
		"find out whose they are: redis-cli TYPE, and choose another prefix for one of the two")
	mixedLevels = check("D210", "mixed-levels", Warning, "bridges of different protocol levels are alive",
		"what the older ones do not serve is refused to those who write it, and is late or out of order in their queues",
		"stop the older bridges, or upgrade them: docs/operations/upgrade.md")
)

// Keys, and the schedule.
var (
	wrongType = check("D301", "wrong-type", Error, "a key holds another type than duestream keeps there",
		"the queue stands still: scripts refuse it",
		"redis-cli TYPE {key}; find out who uses it, rename or delete it, or use another prefix")
	expires = check("D302", "expires", Error, "a key has an expiry",
		"when it ends, all messages in it are gone", "redis-cli PERSIST {key}, and find who sets it",
		"removes the expiry (`PERSIST`)")
	lostMeta = check("D303", "member-without-body", Error, "a retry is scheduled, and its meta is gone",
		"its message and its attempt are unknown: it will become a dead letter `malformed`, with its payload",
		"find who deletes from {key}; redrive the letter: duestream dead redrive {queue} --reason malformed")
	badMeta = check("D304", "bad-meta", Warning, "a scheduled message is malformed",
		"it will become a dead letter `malformed` when it is due",
		"mend the producer (docs/reference/protocol.md, section 4); schedule the message again")
	orphan = check("D305", "body-without-member", Warning, "a payload or meta belongs to no scheduled message",
		"it takes memory, and becomes the body of the next message of that name",
		"bridges delete it after a minute: are they running? Producers write it and the due time in one MULTI",
		"deletes it, if it is still so after a minute")
	seconds = check("D306", "due-in-seconds", Warning, "a due time looks like seconds where milliseconds belong",
		"it counts as 1970: the message is delivered at once",
		"mend the producer; duestream reschedule {queue} <id> --at <time>, before it is drained")
	never = check("D307", "never-due", Warning, "a due time is 10^15 or beyond, or infinite",
		"the message is never delivered, and is kept for ever",
		"duestream reschedule {queue} <id> --at <time>, or duestream cancel {queue} <id>")
	farAhead = check("D308", "centuries-ahead", Warning, "a due time is later than the year 2286",
		"nobody waits for that: the unit is wrong, or the sum",
		"duestream reschedule {queue} <id> --at <time>, or duestream cancel {queue} <id>")
	overdue = check("D309", "overdue", Error, "messages are overdue for more than 10 s, and nobody drains them",
		"they are late, and stay so", "is a bridge running, and what does its log say of this queue? duestream health")
	heldOverdue = check("D310", "held", Note, "the queue is held, and messages are overdue",
		"they wait until somebody takes that back", "duestream queue set {queue} held=false, when they shall go on")
	lostGroup = check("D311", "retry-for-nobody", Warning, "retries are scheduled for a group that does not exist",
		"when they are due they become dead letters `group_gone`",
		"create the group again if they matter: redis-cli XGROUP CREATE {key} {group} 0")
	limited = check("D312", "limited", Note, "messages are overdue in a queue with a release rate or a ready limit",
		"they become ready as these allow",
		"duestream queue set {queue} rate= ready_limit= takes them back; with a ready limit, which group lags? duestream stats {queue}")
	emptyPlaces = check("D313", "empty-places", Note, "messages that waited for their key left places in line behind",
		"they take memory", "bridges clear them away within a minute: are they running? Plain commands that cancel leave them")
	notPlanned = check("D314", "not-planned", Error,
		"the time of an occurrence of a recurrence has come, and nobody has planned it",
		"it is late; with `missed` `once` all but the last occurrence, and with `skip` all are left out for good",
		"is a bridge alive that knows recurrences, and what does its log say? duestream health, duestream recur list {queue}")
	keysUnserved = check("D315", "keys-not-served", Error,
		"messages wait for their key, and no bridge is alive that says that it knows keys",
		"when what they wait for ends without a worker that calls the scripts, they wait for ever",
		"run a bridge of this release; to go on with older ones: duestream queue rollback {queue}")
)

// Streams and groups.
var (
	noGroup = check("D401", "no-group", Warning, "a stream holds entries, and has no group",
		"nobody gets them, and nothing is ever freed",
		"run a worker (duestream work {queue} --group <name>), or redis-cli XGROUP CREATE {key} <group> 0")
	noConsumer = check("D402", "no-consumer", Warning, "entries wait for a group for a minute, and it has no consumers",
		"they are late, and are kept in memory for it", "run a worker, or end the group: redis-cli XGROUP DESTROY {key} {group}")
	notRead = check("D403", "not-read", Warning,
		"entries wait for a group for a minute, and none of its consumers has read meanwhile",
		"they are late, and are kept in memory for it",
		"are its workers alive, and not stuck? duestream pending {queue} --group {group}")
	behind = check("D404", "far-behind", Warning, "entries wait for a group for more than an hour, although it reads",
		"messages are late, and are kept in memory for it", "give the group more workers, or more concurrency")
	oldPending = check("D405", "old-pending", Note,
		"an entry is pending, and was added more than an hour before what its group was given since",
		"somebody extends it all the time, so its handler may hang; it keeps its stream node in memory",
		"duestream pending {queue} --group {group}")
	lostBody = check("D406", "pending-without-entry", Error, "an entry is pending, and was deleted from the stream",
		"the message is lost for that group: it becomes a dead letter `body_lost`", "find who runs XDEL or XTRIM on {key}")
	notReclaimed = check("D407", "not-reclaimed", Error,
		"an entry is pending for far longer than the visibility timeout, without a sign of life, and no bridge takes it back",
		"its consumer is dead, and nobody else gets the message",
		"is a bridge running, and what does its log say of this queue? duestream health")
	stuckReclaim = check("D408", "reclaim-consumer", Warning, "the consumer `duestream-reclaim` holds entries",
		"an entry could not be moved (the dead letters refuse it), or a worker has the name of the bridges' own consumer",
		"what does the bridge's log say? A worker must have another name")
	idleConsumer = check("D409", "idle-consumer", Note,
		"a consumer holds nothing, and has not read for two hours (before Redis 7.2 only if there are 100 such consumers, "+
			"because a consumer without new messages looks the same there)",
		"bridges remove an idle consumer after an hour, and have not removed this one", "is a bridge running? duestream health",
		"removes it; if it lives, its next read brings it back")
	notFreed = check("D410", "not-freed", Warning, "an entry that no group needs any more is still there",
		"memory is not given back", "is a bridge running, and what does its log say of this queue? duestream health",
		"trims what no group needs")
	oddGroup = check("D411", "odd-group", Warning,
		"a group has a name that no retry can carry: empty, not UTF-8, with control characters, or longer than 256 bytes",
		"what it abandons stays pending: bridges leave it alone",
		"read with another group; then redis-cli XGROUP DESTROY {key} <group>")
	aheadOfTime = check("D412", "ids-ahead", Error,
		"the last ID of a stream is more than a day ahead of the server's clock",
		"somebody chose it, and from the largest ID on the stream refuses every entry",
		"find who adds to {key} with IDs of their own (only producers and bridges add at all); redis-cli XDEL {key} <the "+
			"entry with that ID>, and XSETID {key} <Unix ms>-0 ENTRIESADDED <as XINFO STREAM says> MAXDELETEDID 0-0")
	heldLong = check("D413", "held-long", Warning,
		"an entry is held for far longer than deliveries of its group usually take, and its consumer goes on extending it",
		"its handler may hang: the message, the slot and the key that it has are held until it ends",
		"duestream pending {queue} --group {group} says who holds it; restart that worker if its handler hangs, and the "+
			"message is delivered again; duestream queue set {queue} handler_timeout=<longer than any takes> has workers end "+
			"such handlers by themselves")
	deafHistory = check("D414", "history-ahead", Warning,
		"the last ID of a history is more than a day ahead of the server's clock",
		"somebody chose it, and from the largest ID on nothing more is told there; messages are delivered as ever",
		"redis-cli DEL {key}: it begins anew with the next change, and what it told is gone")
)

// Settings, dedup windows, dead letters.
var (
	badSetting = check("D501", "bad-setting", Warning, "a setting is no number, or out of its limits",
		"it does not count: the next level does", "duestream queue show {queue}; duestream queue set {queue} <setting>=<value>")
	oddSetting = check("D502", "unknown-setting", Warning,
		"a setting has a name that nobody knows, or that means nothing where it is",
		"it does not count: it may be misspelt",
		"redis-cli HDEL {key} <field>, and duestream queue set {queue} <setting>=<value>")
	givesUpEarly = check("D503", "gives-up-early", Note, "a message that always fails is given up in less than an hour",
		"whoever the workers depend on may be away for longer: then all that is delivered meanwhile ends as dead letters",
		"duestream queue set {queue} max_attempts=40, or wait longer between attempts: duestream queue show {queue}")
	endedWindow = check("D511", "ended-windows", Note, "dedup windows ended more than 20 minutes ago, and are still there",
		"memory is not given back", "is a bridge running? duestream health", "removes them")
	farWindow = check("D512", "far-window", Warning, "a dedup window ends in more than ten years",
		"the ID is refused until then: the unit is wrong, or the sum", "redis-cli ZREM {key} <id>")
	manyDead = check("D521", "many-dead", Warning, "there are 1,000 dead letters or more",
		"messages are given up, and all are kept in memory",
		"duestream dead list {queue}; mend the cause, then duestream dead redrive {queue} or duestream dead purge {queue}")
	oldDead = check("D522", "old-dead", Note, "a dead letter is older than a week",
		"nobody looks after them", "duestream dead list {queue}")
	oddDead = check("D523", "odd-dead", Warning, "an entry of the dead letters is none",
		"somebody else writes into the stream; tools may not redrive it",
		"redis-cli XRANGE {key} <entry> <entry>, and XDEL when it is not needed")
	freshDead = check("D524", "fresh-dead", Note, "a message became a dead letter within the last 5 minutes",
		"messages are being given up", "duestream dead list {queue}")
)

// The library of functions.
var (
	oldFunctions = check("D601", "old-functions", Warning,
		"the library of functions is not that of this program, nor a newer one",
		"clients that call it get what was right when it was loaded",
		"duestream functions show, and with the newest program: duestream functions load")
	missingFunctions = check("D602", "missing-functions", Warning,
		"a master of the cluster has no library of functions, and others have",
		"clients that call it fail there", "duestream functions load")
)
