package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/deadletter"
)

// letterName returns the name under which the import remembers a dead letter.
func (im *Import) letterName(r Record) string { return im.source + "/" + r.Letter + "/" + r.letterID() }

// findElsewhere sets ErrKnown for records that the scripts would write a second time, because a script looks at one
// partition only. These are:
//   - messages that another partition of the queue holds or remembers, under another ordering key or from a time when
//     the queue had fewer partitions;
//   - ready records whose entry is still in a stream, and whose group was not given the entry or holds it;
//   - dead letters that are in the partition in which the export found them.
//
// It takes one round trip, two for each partition with ready records, and one for each ready record that was given to
// its group; O(log n) for each record and partition. It reads entries with the same entry ID.
func (im *Import) findElsewhere(ctx context.Context, records []Record, indices []int, results []error) error {
	call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	now, err := view.ServerTimeOf(call, im.c, im.keys(0).Seen)
	if err != nil {
		return fmt.Errorf("import into %s: %w", im.queue, err)
	}
	l := &lookup{im: im, results: results, scheduled: membersByPartition{}, remembered: membersByPartition{}}
	streams := map[string]view.StreamInfo{}
	for _, i := range indices {
		r := records[i]
		if r.Kind == RecordReady && r.Member == nil {
			err = l.askReady(call, i, r, streams)
		}
		if err != nil {
			return err
		}
		target := im.partition(r)
		for _, partition := range im.candidates(r) {
			if r.Kind == RecordDead {
				if partition != target { // the script itself looks in the target
					l.askLetter(partition, i, r)
				}
				continue
			}
			targetMember, _ := im.member(r)
			oldMember, _ := r.member() // the member that an import of an earlier release wrote
			for _, member := range slices.Compact([]string{targetMember, oldMember}) {
				if partition == target && member == targetMember {
					continue // the script itself looks for this member
				}
				l.scheduled.add(partition, member, i)
				l.remembered.add(partition, member, i)
			}
		}
	}
	for partition, wanted := range l.scheduled {
		l.askMembers(im.keys(partition).Due, wanted, anyScore)
	}
	for partition, wanted := range l.remembered {
		l.askMembers(im.keys(partition).Seen, wanted, float64(now.UnixMilli()))
	}
	return l.run(call)
}

// membersByPartition holds the members to look for in a sorted set of each partition.
type membersByPartition map[int]*wantedMembers

// wantedMembers are members to look for, each with the index of its record.
type wantedMembers struct {
	members []string
	indices []int
}

func (m membersByPartition) add(partition int, member string, index int) {
	wanted := m[partition]
	if wanted == nil {
		wanted = &wantedMembers{}
		m[partition] = wanted
	}
	wanted.members, wanted.indices = append(wanted.members, member), append(wanted.indices, index)
}

// lookup collects commands for all partitions, and sends them in one round trip.
type lookup struct {
	im                    *Import
	results               []error
	scheduled, remembered membersByPartition
	commands              rueidis.Commands
	readReply             []func(rueidis.RedisResult) error // for each command
}

// ask adds a command, and the function that reads its reply.
func (l *lookup) ask(command rueidis.Completed, readReply func(rueidis.RedisResult) error) {
	l.commands, l.readReply = append(l.commands, command), append(l.readReply, readReply)
}

// run sends the commands and reads the replies.
func (l *lookup) run(ctx context.Context) error {
	if len(l.commands) == 0 {
		return nil
	}
	for n, reply := range l.im.c.DoMulti(ctx, l.commands...) {
		if err := l.readReply[n](reply); err != nil {
			return fmt.Errorf("import into %s: %w", l.im.queue, lua.Classify("look for what is there", err))
		}
	}
	return nil
}

// anyScore is the bound of askMembers with which a member with any score is known.
const anyScore = 0

// askMembers asks for the scores of members. The record of a member is known if the score is above the bound. For dedup
// windows, whose score is their end, the bound is the server's time.
func (l *lookup) askMembers(key string, wanted *wantedMembers, bound float64) {
	l.ask(l.im.c.B().Zmscore().Key(key).Member(wanted.members...).Build(), func(reply rueidis.RedisResult) error {
		list, err := reply.ToArray()
		for n := range list {
			score, noScore := list[n].AsFloat64()
			if noScore == nil && (bound == anyScore || score > bound) {
				l.results[wanted.indices[n]] = ErrKnown
			}
		}
		return err
	})
}

// askLetter asks whether a partition holds, or remembers, the dead letter of a record.
func (l *lookup) askLetter(partition, i int, r Record) {
	l.remembered.add(partition, lua.Separator+"dead"+lua.Separator+l.im.letterName(r), i)
	_, entry, err := deadletter.SplitLetter(r.Letter)
	if err != nil {
		return // no stream holds a letter with a malformed name
	}
	key, want := l.im.keys(partition).Dead, r.fields()
	l.ask(l.im.c.B().Xrange().Key(key).Start(entry).End(entry).Build(), func(reply rueidis.RedisResult) error {
		found, err := reply.AsXRangeSlices()
		if len(found) > 0 && sameFields(found[0].FieldValues, want) {
			l.results[i] = ErrKnown
		}
		return err
	})
}

// askReady asks, for each candidate partition, whether its stream holds the entry of a ready record. It asks only if
// the group of the record was not given the entry, or holds it.
func (l *lookup) askReady(ctx context.Context, i int, r Record, streams map[string]view.StreamInfo) error {
	for _, partition := range l.im.candidates(r) {
		k := l.im.keys(partition)
		isUnsettled, err := l.im.isUnsettled(ctx, k, r, streams)
		if err != nil {
			return err
		}
		if !isUnsettled {
			continue
		}
		entry := l.im.c.B().Xrange().Key(k.Stream).Start(r.Entry).End(r.Entry).Build()
		l.ask(entry, func(reply rueidis.RedisResult) error {
			found, err := reply.AsXRangeSlices()
			if len(found) > 0 && sameMessage(found[0], r) {
				l.results[i] = ErrKnown
			}
			return err
		})
	}
	return nil
}

// candidates returns the partitions that may hold the message of a record. A message before its first delivery may be
// in any partition, because its ID is unique in the queue, whatever its ordering key. Another message may be in the
// partition of its key or of its ID, by each count that the queue ever had. A dead letter may also be in the partition
// in which the export found it.
func (im *Import) candidates(r Record) (all []int) {
	id := r.messageID()
	if r.Kind == RecordDead {
		id = r.letterID()
	}
	if _, isFirst := r.firstMember(); isFirst {
		for partition := range im.counts.Latest() {
			all = append(all, partition)
		}
		return all
	}
	all = append(im.counts.Candidates(r.place()), im.counts.Candidates(id)...)
	if r.Kind == RecordDead {
		if partition, _, err := deadletter.SplitLetter(r.Letter); err == nil && partition < im.counts.Latest() {
			all = append(all, partition)
		}
	}
	if r.overlap() {
		all = append(all, 0)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// firstMember returns the member of a message before its first delivery, and false for any other record. The ID of such
// a message is unique in the queue, whatever its key.
func (r Record) firstMember() (member string, is bool) {
	if r.Kind != RecordScheduled {
		return "", false
	}
	member, _ = r.member()
	return member, lua.ParseMember(member).Kind == lua.MemberFirst
}

// isUnsettled reports whether the group of a record was not given the record's entry in a partition, or holds the
// entry. An entry that was acknowledged since the export may be imported again. streams caches the streams that were
// read.
func (im *Import) isUnsettled(
	ctx context.Context, k lua.Keys, r Record, streams map[string]view.StreamInfo,
) (bool, error) {
	entry, err := view.ParseEntryID(r.Entry)
	if err != nil {
		return false, nil // no stream holds an entry with a malformed ID
	}
	info, read := streams[k.Stream]
	if !read {
		if info, err = view.ReadStream(ctx, im.c, k.Stream); err != nil {
			return false, fmt.Errorf("import into %s: %w", im.queue, err)
		}
		streams[k.Stream] = info
	}
	if info.Length == 0 {
		return false, nil
	}
	group, exists := info.Group(r.For)
	wasNotGiven := exists && group.Last.Compare(entry) < 0
	if r.For == "" || wasNotGiven {
		return true, nil
	}
	onlyEntry := view.PendingRange{From: r.Entry, To: r.Entry, Count: 1}
	pending, err := view.ReadPending(ctx, im.c, k.Stream, r.For, onlyEntry)
	if errors.Is(err, lua.ErrNoGroup) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("import into %s: %w", im.queue, err)
	}
	return len(pending) > 0, nil
}

// sameFields reports whether two lists hold the same fields and values, in any order.
func sameFields(a, b []lua.FieldValue) bool {
	counts := map[lua.FieldValue]int{}
	for _, f := range a {
		counts[f]++
	}
	for _, f := range b {
		if counts[f]--; counts[f] < 0 {
			return false
		}
	}
	return len(a) == len(b)
}

// sameMessage reports whether a ready record was made from this entry.
func sameMessage(entry rueidis.XRangeSlice, r Record) bool {
	entryRecord, ok := readyRecord(entry.ID, entry.FieldValues, r.For)
	entryMember, entryMeta := entryRecord.member()
	member, meta := r.member()
	return ok && entryMember == member && sameMeta(entryMeta, meta) && string(entryRecord.Payload) == string(r.Payload)
}
