package lua

import (
	"context"
	"hash/crc32"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// MaxPartitions is how many partitions a queue may have.
const MaxPartitions = 256

// PartitionName returns the name in the keys of a partition: the queue's own name for partition 0, else queue/i. Give
// it to NewKeys.
func PartitionName(queue string, i int) string {
	if i == 0 {
		return queue
	}
	return queue + "/" + strconv.Itoa(i)
}

// SplitPartition is the reverse of PartitionName. ok is false for a name that PartitionName never returns.
func SplitPartition(name string) (queue string, i int, ok bool) {
	queue, number, found := strings.Cut(name, "/")
	if found {
		var err error
		i, err = strconv.Atoi(number)
		if err != nil || i < 1 || i >= MaxPartitions || number != strconv.Itoa(i) {
			return name, 0, false
		}
	}
	return queue, i, CheckQueue(queue) == nil
}

// CheckPartitions refuses counts of partitions that are not 1 to 256.
func CheckPartitions(n int) error {
	if n < 1 || n > MaxPartitions {
		return Invalid("partitions", strconv.Itoa(n), "must be between 1 and %d", MaxPartitions)
	}
	return nil
}

// Counts holds every partition count that a queue ever had, in order. It only grows, and always holds 1, because any
// client may use partition 0.
type Counts []int

// ParseCounts reads the registry's form, "1" or "1,4". It leaves out numbers that it cannot read.
func ParseCounts(text string) Counts {
	counts := Counts{1}
	for one := range strings.SplitSeq(text, ",") {
		if n, err := strconv.Atoi(one); err == nil && CheckPartitions(n) == nil {
			counts = append(counts, n)
		}
	}
	slices.Sort(counts)
	return slices.Compact(counts)
}

// With returns the union of the counts and others.
func (c Counts) With(others ...int) Counts {
	all := slices.Concat(Counts{1}, c, others)
	slices.Sort(all)
	return slices.Compact(all)
}

// WithoutCounts returns the counts that are not among others.
func WithoutCounts(counts, others Counts) Counts {
	return slices.DeleteFunc(slices.Clone(counts), func(n int) bool { return slices.Contains(others, n) })
}

// Latest returns the largest count, which is the one in force.
func (c Counts) Latest() int {
	if len(c) == 0 {
		return 1
	}
	return c[len(c)-1]
}

// Names returns the names of all partitions of a queue.
func (c Counts) Names(queue string) []string {
	names := make([]string, c.Latest())
	for i := range names {
		names[i] = PartitionName(queue, i)
	}
	return names
}

// Of returns the partition of a new message with this ID. If the message has an ordering key, give the key instead.
func (c Counts) Of(id string) int { return partitionOf(id, c.Latest()) }

// Candidates returns all partitions, those that most likely have a message with this ID first: the partition by the
// count in force, then the partitions by earlier counts. The others follow, because a message with an ordering key is
// in the partition of its key.
func (c Counts) Candidates(id string) []int {
	found := []int{c.Of(id)}
	for _, n := range slices.Backward(c) {
		if i := partitionOf(id, n); !slices.Contains(found, i) {
			found = append(found, i)
		}
	}
	likely := len(found)
	for i := range c.Latest() {
		if !slices.Contains(found[:likely], i) {
			found = append(found, i)
		}
	}
	return found
}

// partitionOf returns the partition of an ID, or of the ordering key of a message that has one. It is part of the
// protocol: the CRC-32 (IEEE) of the text modulo the count.
func partitionOf(id string, count int) int {
	if count <= 1 {
		return 0
	}
	return int(crc32.ChecksumIEEE([]byte(id)) % uint32(count))
}

// String returns the registry's form.
func (c Counts) String() string {
	text := make([]string, len(c))
	for i, n := range c {
		text[i] = strconv.Itoa(n)
	}
	return strings.Join(text, ",")
}

// ReadCounts returns the partition counts of one queue; {1} if it is not registered. One HGET.
func ReadCounts(ctx context.Context, c rueidis.Client, g Globals, queue string) (Counts, error) {
	text, err := c.Do(ctx, c.B().Hget().Key(g.Queues).Field(queue).Build()).ToString()
	if err != nil && !rueidis.IsRedisNil(err) {
		return nil, Classify("HGET "+g.Queues, err)
	}
	return ParseCounts(text), nil
}

// RegistryDeleted is a field of the registry that is not a queue. Its value is the queue that was deleted last. As long
// as the field exists, the registry was not lost, so a queue that is not in the registry and has no keys was deleted.
const RegistryDeleted = "/deleted"

// DeletedCounts returns the field of the registry with the partition counts that a queue had when it was deleted.
// Clients that remember these counts must forget them: see CurrentCounts.
func DeletedCounts(queue string) string { return RegistryDeleted + "/" + queue }

// ReadDeletedCounts returns the partition counts that a queue had when it was deleted and has not got again since; {1}
// if there are none. It sends one HGET.
func ReadDeletedCounts(ctx context.Context, c rueidis.Client, g Globals, queue string) (Counts, error) {
	text, err := c.Do(ctx, c.B().Hget().Key(g.Queues).Field(DeletedCounts(queue)).Build()).ToString()
	if err != nil && !rueidis.IsRedisNil(err) {
		return nil, Classify("HGET "+g.Queues, err)
	}
	return ParseCounts(text), nil
}

// Unregister removes a deleted queue and its partition counts from the registry, and records in the registry that they
// were deleted. It wakes the bridges, because they serve the partitions until they look at the registry. It also
// succeeds on a full server. It may be repeated.
func Unregister(ctx context.Context, c rueidis.Client, g Globals, queue string, had Counts) error {
	fields := []string{RegistryDeleted, queue, queue, ""}
	if had.Latest() > 1 {
		before, err := ReadDeletedCounts(ctx, c, g, queue)
		if err != nil {
			return err
		}
		gone := before.With(had...)
		fields = append(fields, DeletedCounts(queue), gone[1:].String()) // without 1, which every queue has
	}
	_, err := configureScript.integer(ctx, c, []string{g.Queues}, fields)
	if err == nil {
		_ = signal(ctx, c, g.Wake, "queues")
	}
	return err
}

var deleteEmptyScript = load("delete_empty", []string{
	"due", "stream", "dead", "recurring", "push", "payload", "meta", "wake",
	"policy", "seen", "calm", "planned", "turns", "leases", "rate", "changes",
	"progress"}, []string{"hold"}, nil)

// DeleteEmpty deletes the keys of a partition, except its history, unless it holds a message, a recurrence or a push
// target. It reports whether it deleted them. With hold it keeps the policy, and sets its field held: messages that
// come later wait in the schedule of the partition. It also succeeds on a full server. It may be repeated.
func DeleteEmpty(ctx context.Context, c rueidis.Client, k Keys, hold bool) (deleted bool, err error) {
	held := ""
	if hold {
		held = "1"
	}
	n, err := deleteEmptyScript.integer(ctx, c, emptyKeys(k), []string{held})
	return n == 1, err
}

func emptyKeys(k Keys) []string {
	return []string{k.Due, k.Stream, k.Dead, k.Recurring, k.Push, k.Payload, k.Meta, k.Wake, k.Policy, k.Seen, k.Calm,
		k.Planned, k.Turns, k.Leases, k.Rate, k.Changes, k.Progress}
}

// ReadRegistry returns all registered queues with their partition counts, without invalid names. One HGETALL.
func ReadRegistry(ctx context.Context, c rueidis.Client, g Globals) (map[string]Counts, error) {
	texts, err := c.Do(ctx, c.B().Hgetall().Key(g.Queues).Build()).AsStrMap()
	if err != nil {
		return nil, Classify("HGETALL "+g.Queues, err)
	}
	queues := make(map[string]Counts, len(texts))
	for name, text := range texts {
		if CheckQueue(name) == nil {
			queues[name] = ParseCounts(text)
		}
	}
	return queues, nil
}

var registerScript = load("register", []string{"queues"}, nil, []string{"queue", "counts"})

// Register adds queues to the registry that bridges read, with one partition unless they have more; see RegisterCounts.
func Register(ctx context.Context, c rueidis.Client, g Globals, queues []string) (int, error) {
	counts := make(map[string]Counts, len(queues))
	for _, queue := range queues {
		counts[queue] = Counts{1}
	}
	return RegisterCounts(ctx, c, g, counts)
}

// RegisterCounts adds queues and partition counts to the registry that bridges read, and wakes the bridges if any was
// new. It returns how many queues changed. Counts that are registered stay. If a bridge is not woken, it sees the
// queues at its next look at the registry. RegisterCounts also registers counts that a queue had when it was deleted,
// so a client that remembers counts must call SyncCounts instead.
func RegisterCounts(ctx context.Context, c rueidis.Client, g Globals, queues map[string]Counts) (int, error) {
	return register(ctx, c, g, queues, "")
}

// withoutDeleted is a prefix of the argument counts, with which the script register leaves out the counts that a queue
// had when it was deleted.
const withoutDeleted = "-,"

func register(ctx context.Context, c rueidis.Client, g Globals, queues map[string]Counts, prefix string) (int, error) {
	args := make([]string, 0, 2*len(queues))
	for _, queue := range slices.Sorted(maps.Keys(queues)) {
		args = append(args, queue, prefix+queues[queue].With().String())
	}
	n, err := registerScript.integer(ctx, c, []string{g.Queues}, args)
	if err == nil && n > 0 {
		_ = signal(ctx, c, g.Wake, "queues")
	}
	return int(n), err
}

// SyncCounts registers queues with the counts that the caller remembers, except counts of deleted queues. It returns
// the current counts: see CurrentCounts. Two round trips; one if the caller remembers one partition for each queue.
func SyncCounts(ctx context.Context, c rueidis.Client, g Globals,
	remembered map[string]Counts) (map[string]Counts, error) {
	if _, err := register(ctx, c, g, remembered, withoutDeleted); err != nil {
		return nil, err
	}
	several := func(counts Counts) bool { return counts.Latest() > 1 }
	if !slices.ContainsFunc(slices.Collect(maps.Values(remembered)), several) {
		return remembered, nil
	}
	return CurrentCounts(ctx, c, g, remembered)
}

// CurrentCounts returns the current counts of each queue: the remembered counts and those in the registry, without
// counts that the queue had when it was deleted and does not have again. One round trip.
func CurrentCounts(ctx context.Context, c rueidis.Client, g Globals,
	remembered map[string]Counts) (map[string]Counts, error) {
	names := slices.Sorted(maps.Keys(remembered))
	var commands []rueidis.Completed
	for _, queue := range names {
		commands = append(commands, c.B().Hget().Key(g.Queues).Field(queue).Build(),
			c.B().Hget().Key(g.Queues).Field(DeletedCounts(queue)).Build())
	}
	var texts []string
	for _, reply := range c.DoMulti(ctx, commands...) {
		text, err := reply.ToString()
		if err != nil && !rueidis.IsRedisNil(err) {
			return nil, Classify("HGET "+g.Queues, err)
		}
		texts = append(texts, text)
	}
	current := map[string]Counts{}
	for i, queue := range names {
		registered, deleted := ParseCounts(texts[2*i]), ParseCounts(texts[2*i+1])
		current[queue] = WithoutCounts(remembered[queue], deleted).With(registered...)
	}
	return current, nil
}
