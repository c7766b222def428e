package sizes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// depth is how much a reader reads of a partition.
type depth int

const (
	glance depth = iota // for a Watcher: figures that one script reads for many partitions
	scrape              // for metrics: also figures whose sums are exact, and memory
	full                // for Stats: everything, in bounded steps
)

// limits bound the read of one partition. Figures beyond them are estimates, or missing.
type limits struct {
	groups    int   // groups whose details are read
	consumers int64 // consumers of a group; if a group has more, all count as alive
	scans     int64 // steps of ZSCAN that count retries, of 1,000 members each
}

var limitsOf = map[depth]limits{
	glance: {groups: 64, consumers: 500},
	scrape: {groups: 64, consumers: 500, scans: 10},
	full:   {groups: math.MaxInt, consumers: math.MaxInt64, scans: 50},
}

// budget limits the cost of one read, for all partitions together.
type budget struct {
	newestBytes int // glance: bytes of newest entries and dead letters
	letterBytes int // scrape: bytes of dead letters
	unreadBytes int // scrape: bytes of the oldest undelivered entries
	oldestAsks  int // glance: oldest undelivered entries
	oldestBytes int // glance: their bytes
	lagCounts   int // scrape: streams whose entries are counted, because the server does not tell the lag of a group
	scans       int // scrape: steps of ZSCAN after the first one
}

const (
	batchPartitions = 64              // partitions per round trip of a scrape
	glanceTimeout   = 2 * time.Second // for each round trip of a glance
	consumerAlive   = time.Minute     // greatest time since the last read of a consumer that counts as alive
)

// reader reads the figures of partitions.
type reader struct {
	c      rueidis.Client
	prefix string
	depth  depth
	now    time.Time // by the server's clock
	budget
	caches   map[string]*partitionCache // by partition
	defaults map[string]string          // glance: the policy's default settings, as last read

	defaultsAsked bool // glance: this read has asked for the default settings
}

// partitionCache holds the values of a partition that the next read needs. Stats discards it.
type partitionCache struct {
	backlogs   map[string]backlogSeen // glance: by group, of the groups with a backlog
	newestDead newestLetterSeen       // glance
	entrySize  int                    // glance: mean bytes of the newest entries; 0: unknown
	looked     bool                   // glance: a look has seen that the stream was empty
	letters    *letterCounts          // scrape
}

// cacheOf returns the cache of a partition. It creates the cache if there is none.
func (r *reader) cacheOf(p *partition) *partitionCache {
	cache := r.caches[p.name]
	if cache == nil {
		cache = &partitionCache{}
		r.caches[p.name] = cache
	}
	return cache
}

// partition is one partition of a queue while it is read.
type partition struct {
	figures
	name  string
	index int
	keys  lua.Keys
	err   error // why the partition could not be read; then its figures are unknown

	// Replies of the server.
	metas       int64                 // fields of the hash meta
	first       []rueidis.ZScore      // the first member of the schedule; empty: there is none
	upcoming    []rueidis.ZScore      // the first member that is not due; empty: there is none
	settings    map[string]string     // settings of the queue and of its groups
	infos       []view.GroupInfo      // all groups, sorted by name
	details     []groupReplies        // one for each of the first groups of infos, up to the limit
	holders     []string              // names of the groups in details that have pending entries, sorted
	notes       []lua.HeldNotes       // one for each group in holders
	newest      []rueidis.XRangeSlice // full: the newest entries of the stream
	letters     []rueidis.XRangeSlice // scrape: the newest dead letter, if it was not counted yet
	glanced     lua.Glanced           // glance
	askedLetter bool                  // glance: if there were more dead letters than before, the newest was read
	scanned     rueidis.ScanEntry     // scrape, full: the last step of the scan for retries
	noScan      bool                  // scrape: the Redis user may not scan for retries

	// unread has an element for each group of infos. Scrape: the oldest entry after the last one delivered to the
	// group; empty: it was not asked for, or there is none.
	unread [][]rueidis.XRangeSlice

	lags        []groupLag               // one for each group of infos
	policies    map[string]policy.Policy // full: by group; "" stands for the queue
	warnings    []string                 // full: about settings that are not valid
	letterKinds map[LetterKind]int64     // scrape
	moreLetters int64                    // scrape: dead letters that are not in letterKinds
}

// groupReplies are the server's replies about one group.
type groupReplies struct {
	oldest    []view.Pending
	consumers []view.Consumer
	unread    bool // the consumers were not read, because there are too many
}

func newPartition(prefix, name string) *partition {
	_, index, _ := lua.SplitPartition(name)
	return &partition{name: name, index: index, keys: lua.NewKeys(prefix, name)}
}

func newPartitions(prefix, queue string, counts lua.Counts) (parts []*partition) {
	for _, name := range counts.Names(queue) {
		parts = append(parts, newPartition(prefix, name))
	}
	return parts
}

// questionSet holds the questions about a partition in one round trip.
type questionSet struct {
	required []view.Question
	retries  []view.Question // required too, but a scrape does without them if the Redis user lacks the right
	optional []view.Question // if one fails, its figure is missing
}

// read reads partitions in batches. A batch takes two round trips for a full read, and three for a scrape. Lags,
// retries and dead letters may take further ones. If a partition cannot be read, its err says why.
func (r *reader) read(ctx context.Context, parts []*partition) {
	for batch := range slices.Chunk(parts, batchPartitions) {
		r.ask(ctx, batch, r.firstQuestions)
		r.ask(ctx, batch, r.detailQuestions)
		if r.depth == scrape {
			r.ask(ctx, batch, r.unreadQuestions)
		}
		for _, p := range batch {
			if p.err == nil {
				p.err = r.finish(ctx, p)
			}
		}
	}
}

// ask sends the questions about partitions in one round trip.
func (r *reader) ask(ctx context.Context, parts []*partition, questionsAbout func(*partition) questionSet) {
	readable := slices.DeleteFunc(slices.Clone(parts), func(p *partition) bool { return p.err != nil })
	var lists [][]view.Question
	for _, p := range readable {
		q := questionsAbout(p)
		lists = append(lists, q.required, q.retries, q.optional)
	}
	errs := view.AskEach(ctx, r.c, lists...) // one error for each list
	for i, p := range readable {
		requiredErr, retriesErr := errs[3*i], errs[3*i+1]
		if r.depth == scrape && errors.Is(retriesErr, lua.ErrDenied) {
			p.noScan, retriesErr = true, nil
		}
		p.err = cmp.Or(requiredErr, retriesErr)
	}
}

// firstQuestions asks for all sizes.
func (r *reader) firstQuestions(p *partition) questionSet {
	return questionSet{required: r.sizeQuestions(p)}
}

// detailQuestions asks for the contents of groups, and for the newest entry.
func (r *reader) detailQuestions(p *partition) questionSet {
	groups := r.groupQuestions(p)
	if r.depth == full {
		groups = append(groups, r.newestEntry(p)...)
	}
	return questionSet{required: groups, retries: r.retryQuestions(p), optional: r.memoryQuestions(p)}
}

// groupQuestions asks for the oldest pending entry and the consumers of each group, and for the notes of bridges about
// the delivery times of pending entries.
func (r *reader) groupQuestions(p *partition) (all []view.Question) {
	slices.SortFunc(p.infos, func(a, b view.GroupInfo) int { return strings.Compare(a.Name, b.Name) })
	limit := limitsOf[r.depth]
	p.details = make([]groupReplies, min(limit.groups, len(p.infos)))
	for i := range p.details {
		g, d := p.infos[i], &p.details[i]
		if g.Pending > 0 {
			p.holders = append(p.holders, g.Name)
			oldest := view.PendingOf(r.c, p.keys.Stream, g.Name, view.PendingRange{Count: 1}, &d.oldest)
			all = append(all, oldest.OrNoGroup())
		}
		if g.Consumers > 0 && g.Consumers <= limit.consumers {
			all = append(all, view.ConsumersOf(r.c, p.keys.Stream, g.Name, &d.consumers).OrNoGroup())
		}
	}
	if len(p.holders) > 0 {
		all = append(all, view.HeldNotesOf(r.c, p.keys, p.holders, &p.notes))
	}
	return all
}

// newestEntry asks for the newest entry of the stream. Its age tells whether the partition is being drained.
func (r *reader) newestEntry(p *partition) []view.Question {
	if p.Overdue == 0 {
		return nil
	}
	newest := r.c.B().Xrevrange().Key(p.keys.Stream).End("+").Start("-").Count(1).Build()
	return []view.Question{view.Entries(newest, &p.newest)}
}

// finish reads the values that need further round trips, and computes the figures.
func (r *reader) finish(ctx context.Context, p *partition) error {
	steps := []func(context.Context, *partition) error{r.concludeGroups, r.countRetries}
	switch r.depth {
	case glance:
		r.noteNewestEntries(p)
		r.noteNewestLetter(p)
	case scrape:
		steps = append(steps, r.countLetters)
	case full:
		steps = append(steps, r.readOldest, r.countLettersByGroup)
	}
	for _, step := range steps {
		call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
		err := step(call, p)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// concludeGroups reads policies and lags, and computes the figures of the partition and its groups.
func (r *reader) concludeGroups(ctx context.Context, p *partition) error {
	if err := r.readPolicies(ctx, p); err != nil {
		return err
	}
	lags, err := r.lags(ctx, p)
	if err != nil {
		return err
	}
	p.lags = lags
	p.Held, p.Flow = p.settings[policy.SettingHeld] == "1", FlowOf(p.settings)
	if len(p.first) > 0 && p.Overdue > 0 && p.first[0].Score >= view.EarliestDue {
		p.Behind = view.Millis(max(0, r.now.Sub(view.ScoreTime(p.first[0].Score))))
		p.Stalled = r.stalled(p)
	}
	if len(p.upcoming) > 0 {
		p.NextDue = view.Shown(view.ScoreTime(p.upcoming[0].Score))
	}
	if len(p.infos) == 0 {
		p.Ready = p.Entries
	}
	for i, lag := range lags {
		if lag.entries >= p.Ready {
			p.Ready, p.ReadyApprox = lag.entries, lag.approx
		}
		if i < len(p.details) {
			p.groups = append(p.groups, r.groupSizes(p, i, lag))
		}
	}
	p.moreGroups = len(p.infos) - len(p.details)
	return nil
}

// groupSizes returns the figures of one group, except retries and dead letters.
func (r *reader) groupSizes(p *partition, i int, lag groupLag) *GroupSizes {
	info, replies := p.infos[i], &p.details[i]
	g := &GroupSizes{Name: info.Name, Lag: lag.entries, LagApprox: lag.approx, Pending: info.Pending,
		aliveByName: map[string]bool{}}
	if len(replies.oldest) > 0 {
		notes := p.notesOf(info.Name)
		oldest := pendingEntryOf(p.index, replies.oldest[0], notes, r.now)
		g.OldestEntry, g.OldestIdle, g.HeldLongest = &oldest, &oldest.Idle, &oldest
		if usual := view.Millis(notes.Usual); usual >= 0 {
			g.Usual = &usual
		}
	}
	if info.Consumers > limitsOf[r.depth].consumers || replies.unread {
		g.manyConsumers, g.aliveApprox = info.Consumers, true
	}
	replies.consumers = slices.DeleteFunc(replies.consumers, func(one view.Consumer) bool {
		return one.Name == lua.ReclaimConsumer
	})
	for _, one := range replies.consumers {
		// Idle is the time since the last read if the server tells Inactive. Otherwise it is the time since the last
		// read that returned an entry, and a consumer without work cannot be told from a dead one.
		g.aliveApprox = g.aliveApprox || !one.Tells
		g.aliveByName[one.Name] = !one.Tells || one.Idle <= consumerAlive
	}
	g.countConsumers()
	g.noteWaiting(r.now, lag, replies.consumers)
	if group, known := r.policyOf(p, info); known {
		g.Visibility, g.HandlerTimeout = group.VisibilityTimeout, group.HandlerTimeout
	}
	return g
}

// notesOf returns the notes of bridges about a group.
func (p *partition) notesOf(group string) lua.HeldNotes {
	if i, found := slices.BinarySearch(p.holders, group); found && i < len(p.notes) {
		return p.notes[i]
	}
	return lua.HeldNotes{Usual: -1} // unknown
}

// readPolicies reads the policies of the queue and its groups, for Stats.
func (r *reader) readPolicies(ctx context.Context, p *partition) error {
	if r.depth != full {
		return nil
	}
	// No group is called "". The policy for "" is the policy of groups without settings of their own.
	groups := append(view.StreamInfo{Groups: p.infos}.Names(), "")
	policies, warning, err := policy.ReadGroups(ctx, r.c, r.prefix, p.name, groups)
	p.policies = policies
	if warning != nil {
		p.warnings = strings.Split(warning.Error(), "\n")
	}
	return err
}

// policyOf returns the policy of a group. A glance knows the policies of groups with pending entries, a scrape none.
func (r *reader) policyOf(p *partition, g view.GroupInfo) (groupPolicy policy.Policy, known bool) {
	switch {
	case r.depth == full:
		return p.policies[g.Name], true
	case r.depth == glance && g.Pending > 0:
		policies, _ := policy.Resolve([]string{g.Name}, p.settings, r.defaults)
		return policies[g.Name], true
	}
	return policy.Policy{}, false
}

// readOldest reads the bodies of the oldest pending entries.
func (r *reader) readOldest(ctx context.Context, p *partition) error {
	var list []*PendingEntry
	for _, g := range p.groups {
		if g.OldestEntry != nil {
			list = append(list, g.OldestEntry)
		}
	}
	return readBodies(ctx, r.c, p.keys.Stream, list)
}

// partitionKey is a Redis key of a partition.
type partitionKey struct {
	name     string // the last part of the key
	key      string
	keyType  string // its type in Redis
	elements int64  // 0: empty, or the number is not read
}

// partitionKeys returns the keys of a partition, with the numbers of elements that sizeQuestions read.
func (p *partition) partitionKeys() []partitionKey {
	k := p.keys
	return []partitionKey{
		{"due", k.Due, "zset", p.Scheduled},
		{"payload", k.Payload, "hash", p.Scheduled},
		{"meta", k.Meta, "hash", p.metas},
		{"stream", k.Stream, "stream", p.Entries},
		{"dead", k.Dead, "stream", p.Dead},
		{"wake", k.Wake, "stream", 0},
		{"policy", k.Policy, "hash", 0},
		{"seen", k.Seen, "zset", 0},
		{"calm", k.Calm, "hash", 0},
		{"turns", k.Turns, "zset", p.Turns},
	}
}

// checkTypes returns lua.ErrWrongType if a key has another type than it should.
func (r *reader) checkTypes(ctx context.Context, p *partition) error {
	keys := p.partitionKeys()
	types, questions := make([]string, len(keys)), make([]view.Question, len(keys))
	for i, k := range keys {
		questions[i] = view.Into(r.c.B().Type().Key(k.key).Build(), &types[i], rueidis.RedisResult.ToString)
	}
	if err := view.Ask(ctx, r.c, questions...); err != nil {
		return err
	}
	var errs []error
	for i, k := range keys {
		if types[i] != k.keyType && types[i] != "none" {
			errs = append(errs, fmt.Errorf("key %s holds a %s where a %s belongs: %w",
				k.key, types[i], k.keyType, lua.ErrWrongType))
		}
	}
	return errors.Join(errs...)
}

// memoryQuestions asks for the bytes of each key. A scrape asks only for keys that are known to exist.
func (r *reader) memoryQuestions(p *partition) (all []view.Question) {
	p.Memory = map[string]int64{}
	for _, k := range p.partitionKeys() {
		if r.depth == full || k.elements > 0 {
			all = append(all, memoryQuestion(r.c, k, p.Memory))
		}
	}
	return all
}

// memoryQuestion asks for the bytes of a key. If the server answers, memory gets them under the name of the key.
func memoryQuestion(c rueidis.Client, k partitionKey, memory map[string]int64) view.Question {
	var bytes int64
	return view.Into(c.B().MemoryUsage().Key(k.key).Build(), &bytes, func(reply rueidis.RedisResult) (int64, error) {
		bytes, err := reply.AsInt64()
		if err == nil {
			memory[k.name] = bytes
		}
		return bytes, err
	})
}
