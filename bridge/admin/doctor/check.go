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

// check declares a check. mends is at most one text; without it the check has no repair.
func check(code, name string, severity Severity, finds, why, do string, mends ...string) *Check {
	c := &Check{code, name, severity, finds, why, do, strings.Join(mends, "")}
	checks = append(checks, c)
	return c
}

// The server.
var (
	oldServer = check("D101", "old-server", Error, "the server is older than Redis 7.0 or Valkey 7.2",
		"scripts and workers need commands that such a server does not know", "upgrade the server")
	evicts = check("D102", "evicts", Error, "`maxmemory-policy` is not `noeviction`",
		"when memory is full the server deletes whole queues; bridges refuse to serve",
		"redis-cli CONFIG SET maxmemory-policy noeviction, and set it in redis.conf")
	noLimit = check("D103", "no-memory-limit", Note, "`maxmemory` is not set, or is more than the machine has",
		"the kernel kills a server that runs out of memory, and a kill loses more than a refusal of new messages",
		"redis-cli CONFIG SET maxmemory 4gb, or what the machine can give")
	nearlyFull = check("D104", "nearly-full", Warning, "90 % of `maxmemory` or more is used",
		"when the server is full, new messages are refused",
		"duestream stats shows what holds memory: read the backlog, destroy forgotten groups, purge dead letters, "+
			"raise maxmemory")
	noAOF = check("D105", "no-append-only-file", Warning, "`appendonly` is off",
		"a crash loses every message since the last snapshot",
		"redis-cli CONFIG SET appendonly yes, and set it in redis.conf")
	noFsync = check("D106", "never-synced", Warning, "`appendfsync` is `no`",
		"a power failure loses what the kernel had not written yet: half a minute and more",
		"redis-cli CONFIG SET appendfsync everysec, and set it in redis.conf")
	persistence = check("D107", "cannot-persist", Error,
		"the last write of the append-only file, or the last snapshot, failed",
		"the server may refuse all writes (MISCONF), and loses more in a crash", "look at the server's log, and at its disk")
	replicaBehind = check("D108", "replica-behind", Warning,
		"a replica is not online, or was not heard of for more than 10 s",
		"a failover to that replica loses the writes that it does not have",
		"look at the replica: redis-cli INFO replication")
	tooFewReplicas = check("D109", "too-few-replicas", Error,
		"fewer replicas are good than `min-replicas-to-write` asks for",
		"the server refuses all writes, also those that deliver and acknowledge",
		"connect the replicas, or redis-cli CONFIG SET min-replicas-to-write 0")
	needsReplicas = check("D110", "needs-replicas", Note, "`min-replicas-to-write` is not 0",
		"without a good replica all writes are refused, also those that deliver and acknowledge",
		"nothing, if that is what you want (docs/operations/durability.md)")
	isReplica = check("D111", "is-replica", Error, "the server is a replica",
		"a replica takes no writes", "use the URL of the master, or of the sentinels with ?master_set=")
	clockApart = check("D112", "clock-apart", Warning,
		"the clocks of the server and of this machine are more than 2 s apart",
		"due times count by the server's clock: if that clock is wrong, all messages are early or late by the difference",
		"compare both with a third, and mend time synchronisation on the wrong one; slew it, do not step it")
	notChecked = check("D113", "not-checked", Warning,
		"the user may not run `INFO`, so the settings of the server could not be checked",
		"the server may delete queues when it is full, lose messages in a crash, or be too old",
		"run duestream doctor as a user that has +info: docs/operations/users.md")
	notLookedAt = check("D114", "not-looked-at", Note, "the user lacks a right that a check needs",
		"faults there are not found",
		"grant it, or run duestream doctor as a user that has it: docs/operations/users.md")
	full = check("D115", "full", Error, "the used memory has reached `maxmemory`, and the server deletes nothing",
		"new messages are refused (OOM); scheduled messages are still delivered, retried, acknowledged and freed",
		"raise maxmemory with redis-cli CONFIG SET if the machine has memory left; "+
			"then see \"Redis is full\" in docs/operations/runbook.md")
)

// Bridges and the registry.
var (
	noBridge = check("D201", "no-bridge", Error, "no bridge has sent a heartbeat in the last 5 s",
		"nothing becomes ready, is reclaimed or freed", "duestream serve")
	noToken = check("D202", "no-wake-token", Note, "messages are scheduled, and the wake stream is empty",
		"producers add no token, so messages may be late by up to 5 s",
		"let the producer add it: docs/reference/protocol.md, section 7",
		"adds a token")
	manyTokens = check("D203", "wake-tokens", Warning, "a wake stream holds more than one token",
		"a producer adds tokens without `MAXLEN 1`: the stream grows for ever", "let the producer use XADD {key} MAXLEN 1",
		"adds a token with `MAXLEN 1`")
	unregistered = check("D204", "unregistered", Warning, "a queue has keys, and is not registered",
		"bridges find it by a slow scan only, and tools do not list it", "duestream queue partitions {queue} {n}",
		"registers the queue, with all partitions that a growth of the queue has prepared")
	badRegistry = check("D205", "bad-registry", Warning,
		"an entry of the registry is not a queue name, or not a list of partition counts",
		"bridges ignore the invalid part, so messages in some partitions may not be drained",
		"register the counts anew: duestream queue partitions <queue> <n>; redis-cli HDEL {registry} <name> for an "+
			"invalid name", "writes the list without the invalid counts; leaves names alone")
	uncountedPartition = check("D206", "partition-beyond", Error, "a partition beyond the registered count holds messages",
		"no worker reads this partition; a bridge moves a scheduled message to the right partition only if "+
			"the queue once had this one, and the ID of the message is free in the right one",
		"duestream doctor --repair; to keep the partition, duestream queue partitions {queue} {n}",
		"moves scheduled messages to the right partitions; if the partition holds entries or dead letters, "+
			"and the queue no message with a key, grows the queue to include the partition")
	partitionGroup = check("D207", "partition-without-group", Error, "a partition lacks a group that another one has",
		"the group does not get the messages that become ready there, and bridges free these messages all the same",
		"duestream queue partitions {queue} {n}",
		"creates the group there, at 0")
	partitionPolicy = check("D208", "partition-policy", Warning, "a partition has other settings than partition 0",
		"its messages follow other rules than those of partition 0", "duestream queue partitions {queue} {n}",
		"writes the settings of partition 0")
	foreignKey = check("D209", "foreign-key", Note, "keys begin with the prefix, and are not duestream's",
		"another program, or another prefix that begins with this one, may use the same keys",
		"find out whose they are: redis-cli TYPE, and choose another prefix for one of the two")
	mixedLevels = check("D210", "mixed-levels", Warning, "bridges of different protocol levels are alive",
		"clients refuse writes that the older bridges do not serve; such messages, if they were written "+
			"earlier or in spite of it, are late or out of order in queues of older bridges",
		"stop the older bridges, or upgrade them: docs/operations/upgrade.md")
)

// Keys, and the schedule.
var (
	wrongType = check("D301", "wrong-type", Error, "a key has another type than duestream keeps there",
		"the queue stands still: scripts refuse it",
		"redis-cli TYPE {key}; find out who uses it, rename or delete it, or use another prefix")
	expires = check("D302", "expires", Error, "a key has an expiry",
		"when it ends, all messages in it are gone", "redis-cli PERSIST {key}, and find who sets it",
		"removes the expiry (`PERSIST`)")
	lostMeta = check("D303", "member-without-body", Error, "a retry is scheduled, and its meta is gone",
		"the message and the attempt of the retry are unknown: it will become a dead letter `malformed`, "+
			"with its payload",
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
		"the unit or the calculation is wrong",
		"duestream reschedule {queue} <id> --at <time>, or duestream cancel {queue} <id>")
	overdue = check("D309", "overdue", Error, "messages are overdue for more than 10 s, and nobody drains them",
		"they are late, and stay late", "is a bridge running, and what does its log say of this queue? duestream health")
	heldOverdue = check("D310", "held", Note, "the queue is paused (`held`), and messages are overdue",
		"they wait until the queue is resumed", "duestream queue set {queue} held=false, to deliver them")
	lostGroup = check("D311", "retry-for-nobody", Warning, "retries are scheduled for a group that does not exist",
		"when they are due they become dead letters `group_gone`",
		"create the group again if they matter: redis-cli XGROUP CREATE {key} {group} 0")
	limited = check("D312", "limited", Note, "messages are overdue in a queue with a release rate or a ready limit",
		"they become ready as the rate and the limit allow",
		"duestream queue set {queue} rate= ready_limit= removes both; with a ready limit, which group lags? "+
			"duestream stats {queue}")
	emptyPlaces = check("D313", "empty-places", Note,
		"messages that waited for their key are gone or were moved, and their places in the line of the key "+
			"are still stored",
		"they take memory",
		"bridges clear them away within a minute: are they running? Plain commands that cancel leave them")
	notPlanned = check("D314", "not-planned", Error,
		"an occurrence of a recurrence is due, and no bridge has planned it",
		"it is late; of several missed occurrences, `missed` = `once` makes up for the last one only, and "+
			"`missed` = `skip` for none",
		"is a bridge alive that knows recurrences, and what does its log say? duestream health, duestream recur list {queue}")
	keysUnserved = check("D315", "keys-not-served", Error,
		"messages wait for their key, and no living bridge announces that it serves keys",
		"if the message before them ends by a plain command such as `XACK`, or by an older program, no bridge lets the "+
			"next one go, and they wait for ever",
		"run a bridge of this release; to go on with older ones: duestream queue rollback {queue}")
)

// Streams and groups.
var (
	noGroup = check("D401", "no-group", Warning, "a stream holds entries, and has no group",
		"nobody gets them, and nothing is ever freed",
		"run a worker (duestream work {queue} --group <name>), or redis-cli XGROUP CREATE {key} <group> 0")
	noConsumer = check("D402", "no-consumer", Warning,
		"entries have waited for a group for a minute, and the group has no consumers",
		"they are late, and are kept in memory for it",
		"run a worker, or end the group: redis-cli XGROUP DESTROY {key} {group}")
	notRead = check("D403", "not-read", Warning,
		"entries have waited for a group for a minute, and none of its consumers has read meanwhile",
		"they are late, and are kept in memory for it",
		"are its workers alive, and not stuck? duestream pending {queue} --group {group}")
	behind = check("D404", "far-behind", Warning,
		"entries have waited for a group for more than an hour, although the group reads",
		"messages are late, and are kept in memory for it", "give the group more workers, or more concurrency")
	oldPending = check("D405", "old-pending", Note,
		"a pending entry is more than an hour older than the last entry that its group was given",
		"the worker extends the entry all the time, so its handler may hang; the entry keeps its stream node "+
			"in memory",
		"duestream pending {queue} --group {group}")
	lostBody = check("D406", "pending-without-entry", Error, "an entry is pending, and was deleted from the stream",
		"the message is lost for that group: it becomes a dead letter `body_lost`", "find who runs XDEL or XTRIM on {key}")
	notReclaimed = check("D407", "not-reclaimed", Error,
		"an entry is pending for far longer than the visibility timeout, without a sign of life, and no bridge takes it back",
		"its consumer is dead, and nobody else gets the message",
		"is a bridge running, and what does its log say of this queue? duestream health")
	stuckReclaim = check("D408", "reclaim-consumer", Warning, "the consumer `duestream-reclaim` holds entries",
		"an entry could not be moved (the stream of dead letters refuses it), or a worker has the name of "+
			"the bridges' own consumer",
		"what does the bridge's log say? A worker must have another name")
	idleConsumer = check("D409", "idle-consumer", Note,
		"a consumer holds no message, and its last read is two hours old; before Redis 7.2 only if there are 100 of them, "+
			"because there an idle worker looks like a dead one",
		"bridges remove an idle consumer after an hour, and have not removed this one",
		"is a bridge running? duestream health",
		"removes the consumer; if it lives, its next read creates it again")
	notFreed = check("D410", "not-freed", Warning, "an entry that no group needs any more is still there",
		"memory is not given back", "is a bridge running, and what does its log say of this queue? duestream health",
		"trims what no group needs")
	oddGroup = check("D411", "odd-group", Warning,
		"a group has a name that no retry can carry: empty, not UTF-8, with control characters, or longer than 256 bytes",
		"its abandoned entries stay pending: bridges leave them alone",
		"read with another group; then redis-cli XGROUP DESTROY {key} <group>")
	aheadOfTime = check("D412", "ids-ahead", Error,
		"the last ID of a stream is more than a day ahead of the server's clock",
		"a program chose that ID itself; if it is the largest possible ID, the stream refuses every further entry",
		"find who adds to {key} with IDs of their own (only producers and bridges add at all); redis-cli XDEL {key} <the "+
			"entry with that ID>, and XSETID {key} <Unix ms>-0 ENTRIESADDED <as XINFO STREAM says> MAXDELETEDID 0-0")
	heldLong = check("D413", "held-long", Warning,
		"an entry is held for far longer than deliveries of its group usually take, and its consumer goes on extending it",
		"its handler may hang; until it ends, it holds the message, a slot of the worker, and the key of the "+
			"message",
		"duestream pending {queue} --group {group} shows its consumer; if the handler hangs, restart that worker: the "+
			"message is delivered again; with duestream queue set {queue} handler_timeout=<longer than any takes>, workers "+
			"end such handlers by themselves")
	historyIDAhead = check("D414", "history-ahead", Warning,
		"the last ID of a history is more than a day ahead of the server's clock",
		"a program chose that ID itself; if it is the largest possible ID, no change is recorded any more; "+
			"messages are still delivered",
		"redis-cli DEL {key}: the recorded changes are gone, and the next change begins a new history")
	targetBehind = check("D415", "target-behind", Warning,
		"entries have waited for a minute for a group whose messages are posted to a target of callbacks, and the target "+
			"takes none of them, or too few",
		"its partner does not get them, and they are kept in memory for it",
		"does the target answer, and does a process with --push, or duestream push run, post to it? Its log says; "+
			"duestream push list {queue} shows the target")
	slowWorkers = check("D416", "slow-workers", Warning,
		"entries have waited for a group for a minute, and its workers need more than ten minutes for what waits",
		"messages are late, and while more become ready than the workers do, they get later and later",
		"start more workers of the group, or give them more concurrency")
)

// Settings, dedup windows, dead letters.
var (
	badSetting = check("D501", "bad-setting", Warning, "a setting is no number, or out of its limits",
		"the setting is ignored, and the value of the next level counts: queue, defaults, program",
		"duestream queue show {queue}; duestream queue set {queue} <setting>=<value>")
	oddSetting = check("D502", "unknown-setting", Warning,
		"a setting has an unknown name, or has no meaning where it is",
		"it is ignored: it may be misspelt",
		"redis-cli HDEL {key} <field>, and duestream queue set {queue} <setting>=<value>")
	givesUpEarly = check("D503", "gives-up-early", Note, "a message that always fails is given up in less than an hour",
		"a service that the workers need may be away for longer, and all messages of that time become dead letters",
		"duestream queue set {queue} max_attempts=40, or wait longer between attempts: duestream queue show {queue}")
	endedWindow = check("D511", "ended-windows", Note, "dedup windows ended more than 20 minutes ago, and are still there",
		"memory is not given back", "is a bridge running? duestream health", "removes them")
	farWindow = check("D512", "far-window", Warning, "a dedup window ends in more than ten years",
		"the ID is refused until then: the unit or the calculation is wrong", "redis-cli ZREM {key} <id>")
	manyDead = check("D521", "many-dead", Warning, "there are 1,000 dead letters or more",
		"messages are given up, and all are kept in memory",
		"duestream dead list {queue}; mend the cause, then duestream dead redrive {queue} or duestream dead purge {queue}")
	oldDead = check("D522", "old-dead", Note, "a dead letter is older than a week",
		"nobody looks after them", "duestream dead list {queue}")
	oddDead = check("D523", "odd-dead", Warning, "an entry of the dead letters is not a dead letter",
		"another program writes into the stream; tools may not redrive such an entry",
		"redis-cli XRANGE {key} <entry> <entry>, and XDEL when it is not needed")
	freshDead = check("D524", "fresh-dead", Note, "a message became a dead letter within the last 5 minutes",
		"messages are being given up", "duestream dead list {queue}")
)

// The library of functions.
var (
	oldFunctions = check("D601", "old-functions", Warning,
		"the library of functions is neither that of this program nor a newer one",
		"clients that call the library get the behaviour of the release that loaded it",
		"duestream functions show, and with the newest program: duestream functions load")
	missingFunctions = check("D602", "missing-functions", Warning,
		"a master of the cluster has no library of functions, and others have",
		"clients that call the library fail on that master", "duestream functions load")
)
