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

// findElsewhere sets ErrKnown for records that the scripts would take again, because they look at one partition only.
// These are messages that another partition of the queue holds or remembers, under another key or from a time when the
// queue had fewer partitions; entries that their group still has to be given; and letters that lie where the export
// found them. One round trip, two for each partition with ready records, and one for each such record that was given to
// its group; O(log n) for each record and partition. It reads entries of the same ID.
func (im *Import) findElsewhere(ctx context.Context, records []Record, indices []int, results []error) error {
	call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	at, err := view.ServerTimeOf(call, im.c, im.keys(0).Seen)
	if err != nil {
		return fmt.Errorf("import into %s: %w", im.queue, err)
	}
	l := &lookup{im: im, results: results, scheduled: scores{}, remembered: scores{}}
	streams := map[string]view.StreamInfo{}
	for _, i := range indices {
		r := records[i]
		if r.Kind == RecordReady && r.Member == nil {
			err = l.ready(call, i, r, streams)
		}
		if err != nil {
			return err
		}
		target := im.partition(r)
		for _, partition := range im.candidates(r) {
			if r.Kind == RecordDead {
				if partition != target { // the script looks there
					l.letter(partition, i, r)
				}
				continue
			}
			now, _ := im.member(r)
			before, _ := r.member() // the name in an import of an earlier release
			for _, member := range slices.Compact([]string{now, before}) {
				if partition == target && member == now {
					continue // the script looks there
				}
				l.scheduled.add(partition, member, i)
				l.remembered.add(partition, member, i)
			}
		}
	}
	for partition, of := range l.scheduled {
		l.scores(im.keys(partition).Due, of, 0)
	}
	for partition, of := range l.remembered {
		l.scores(im.keys(partition).Seen, of, float64(at.UnixMilli()))
	}
	return l.run(call)
}

// scores are the members to look for in the sorted sets, by partition, with the records that they stand for.
type scores map[int]*membersOf

type membersOf struct {
	members []string
	indices []int
}

func (s scores) add(partition int, member string, i int) {
	of := s[partition]
	if of == nil {
		of = &membersOf{}
		s[partition] = of
	}
	of.members, of.indices = append(of.members, member), append(of.indices, i)
}

// lookup gathers the commands for all partitions, sent in one round trip.
type lookup struct {
	im                    *Import
	results               []error
	scheduled, remembered scores
	commands              rueidis.Commands
	read                  []func(rueidis.RedisResult) error
}

func (l *lookup) ask(command rueidis.Completed, read func(rueidis.RedisResult) error) {
	l.commands, l.read = append(l.commands, command), append(l.read, read)
}

func (l *lookup) run(ctx context.Context) error {
	if len(l.commands) == 0 {
		return nil
	}
	for n, reply := range l.im.c.DoMulti(ctx, l.commands...) {
		if err := l.read[n](reply); err != nil {
			return fmt.Errorf("import into %s: %w", l.im.queue, lua.Classify("look for what is there", err))
		}
	}
	return nil
}

// scores asks for the scores of members. A member is known if its score is above behind. For windows, whose scores are
// their ends, behind is the server's time; with 0 any score counts.
func (l *lookup) scores(key string, of *membersOf, behind float64) {
	l.ask(l.im.c.B().Zmscore().Key(key).Member(of.members...).Build(), func(reply rueidis.RedisResult) error {
		list, err := reply.ToArray()
		for n := range list {
			score, none := list[n].AsFloat64()
			if none == nil && (behind == 0 || score > behind) {
				l.results[of.indices[n]] = ErrKnown
			}
		}
		return err
	})
}

// letter asks whether a partition holds, or remembers, a dead letter.
func (l *lookup) letter(partition, i int, r Record) {
	l.remembered.add(partition, lua.Separator+"dead"+lua.Separator+l.im.letterName(r), i)
	_, entry, err := deadletter.SplitLetter(r.Letter)
	if err != nil {
		return // no stream has it
	}
	key, want := l.im.keys(partition).Dead, r.fields()
	l.ask(l.im.c.B().Xrange().Key(key).Start(entry).End(entry).Build(), func(reply rueidis.RedisResult) error {
		found, err := reply.AsXRangeSlices()
		if len(found) > 0 && sameFacts(found[0].FieldValues, want) {
			l.results[i] = ErrKnown
		}
		return err
	})
}

// ready asks whether a stream holds the entry of a ready record that its group still has to get or to acknowledge.
func (l *lookup) ready(ctx context.Context, i int, r Record, streams map[string]view.StreamInfo) error {
	for _, partition := range l.im.candidates(r) {
		k := l.im.keys(partition)
		owed, err := l.im.owes(ctx, k, r, streams)
		if err != nil {
			return err
		}
		if !owed {
			continue
		}
		l.ask(l.im.c.B().Xrange().Key(k.Stream).Start(r.Entry).End(r.Entry).Build(), func(reply rueidis.RedisResult) error {
			found, err := reply.AsXRangeSlices()
			if len(found) > 0 && sameMessage(found[0], r) {
				l.results[i] = ErrKnown
			}
			return err
		})
	}
	return nil
}

// candidates returns the partitions that may hold the message of a record. For a message before its first delivery
// these are all, because its ID belongs to the queue whatever its key. Otherwise they are those of its key and of its
// ID, by each count that the queue ever had; for a dead letter also the one in which the export found it.
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
	if partition, _, err := deadletter.SplitLetter(r.Letter); r.Kind == RecordDead && err == nil &&
		partition < im.counts.Latest() {
		all = append(all, partition)
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

// owes reports whether the stream of a partition would still give the record's entry to its group, or the group holds
// it. An entry that was acknowledged since the export may be imported again. streams caches the streams that were read.
func (im *Import) owes(ctx context.Context, k lua.Keys, r Record, streams map[string]view.StreamInfo) (bool, error) {
	entry, err := view.ParseEntryID(r.Entry)
	if err != nil {
		return false, nil // no stream has it
	}
	info, read := streams[k.Stream]
	if !read {
		if info, err = view.ReadStream(ctx, im.c, k.Stream); err != nil {
			return false, fmt.Errorf("import into %s: %w", im.queue, err)
		}
		streams[k.Stream] = info
	}
	group, there := info.Group(r.For)
	if r.For == "" || there && group.Last.Compare(entry) < 0 || info.Length == 0 {
		return info.Length > 0, nil
	}
	pending, err := view.ReadPending(ctx, im.c, k.Stream, r.For, view.PendingRange{From: r.Entry, To: r.Entry, Count: 1})
	if errors.Is(err, lua.ErrNoGroup) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("import into %s: %w", im.queue, err)
	}
	return len(pending) > 0, nil
}

// sameFacts reports whether two lists hold the same fields and values, in any order.
func sameFacts(is, want []lua.FieldValue) bool {
	times := map[lua.FieldValue]int{}
	for _, f := range is {
		times[f]++
	}
	for _, f := range want {
		if times[f]--; times[f] < 0 {
			return false
		}
	}
	return len(is) == len(want)
}

// sameMessage reports whether a ready record was made of this entry.
func sameMessage(found rueidis.XRangeSlice, want Record) bool {
	is, ok := readyRecord(found.ID, found.FieldValues, want.For)
	isMember, isMeta := is.member()
	member, meta := want.member()
	return ok && isMember == member && sameMeta(isMeta, meta) && string(is.Payload) == string(want.Payload)
}
