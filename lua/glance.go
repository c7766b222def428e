package lua

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// GlanceAt is a partition to glance at.
type GlanceAt struct {
	Keys    Keys
	Newest  int   // bytes of the newest entries to read; one entry more may be read; 0 = read none
	Letters int64 // dead letters that the caller knows of: if there are more, the newest is read; -1 = read none
}

// Glanced are the figures of a partition, all of the same moment.
type Glanced struct {
	At  time.Time // by the server's clock
	Err error     // why the partition could not be read; then the other fields are zero

	Scheduled, Overdue, Metas, Entries, Dead int64

	First    string               // the score of the member that is due first; "" = there is none
	Settings rueidis.RedisMessage // the policy, as HGETALL replies; nil = there are too many settings
	Groups   rueidis.RedisMessage // as XINFO GROUPS replies
	Details  []GlancedGroup       // of the first groups
	Newest   []GlancedEntry       // the newest entries of the stream, the newest first
	Letter   string               // ID of the newest dead letter; "" = it was not read, or is not fresh
	NoRoom   bool                 // the newest dead letter was to be read, and the call had no room for it
	Retries  []string             // members of the schedule among the first 100 that are no first-time messages
}

// GlancedGroup has details of a group.
type GlancedGroup struct {
	Name      string
	Oldest    rueidis.RedisMessage // the oldest pending entry, as XPENDING replies; nil = there is none
	Notes     HeldNotes
	Consumers rueidis.RedisMessage // as XINFO CONSUMERS replies; nil = there are none, or too many
}

// GlancedEntry is an entry of a stream.
type GlancedEntry struct {
	ID   string
	Due  time.Time // zero if the entry does not tell it
	Size int       // bytes of its fields and values
}

var glanceScript = func() *script {
	s := load("glance", []string{"due", "meta", "stream", "dead", "policy", "calm"}, []string{"most_groups", "fresh"},
		[]string{"newest", "letters"}).repeatable()
	s.everyKey = true
	return s
}()

// MaxGlance is how many partitions one glance looks at. Its script takes one or two milliseconds for them.
const MaxGlance = 64

// Glance reads the figures of up to MaxGlance partitions in one round trip. If the values are too many or too large for
// one call, it returns the figures of the first partitions only, of one at least: call it again for the others. On a
// cluster the partitions must share a slot, so give only one. mostGroups bounds the groups of a partition with details;
// a dead letter that is older than fresh is not read.
func Glance(
	ctx context.Context, c rueidis.Client, parts []GlanceAt, mostGroups int, fresh time.Duration,
) ([]Glanced, error) {
	keys := make([]string, 0, 6*len(parts))
	args := make([]string, 0, 2+2*len(parts))
	args = append(args, strconv.Itoa(mostGroups), strconv.FormatInt(fresh.Milliseconds(), 10))
	for _, p := range parts {
		keys = append(keys, p.Keys.Due, p.Keys.Meta, p.Keys.Stream, p.Keys.Dead, p.Keys.Policy, p.Keys.Calm)
		args = append(args, strconv.Itoa(p.Newest), strconv.FormatInt(p.Letters, 10))
	}
	reply, err := glanceScript.list(ctx, c, keys, args, 1+len(parts))
	if err != nil {
		return nil, err
	}
	ms, err := reply[0].AsInt64()
	if err != nil {
		return nil, glanceScript.unexpected(err)
	}
	list := make([]Glanced, 0, len(parts))
	for _, row := range reply[1:] {
		if n, err := row.AsInt64(); err == nil && n == notReached {
			break
		}
		one, err := parseGlanced(row)
		if err != nil {
			return nil, glanceScript.unexpected(err)
		}
		one.At = time.UnixMilli(ms)
		list = append(list, one)
	}
	if len(list) == 0 && len(parts) > 0 {
		return nil, glanceScript.unexpected(errors.New("nothing was looked at"))
	}
	return list, nil
}

// replyReader reads the values of a reply one after the other. It keeps the first error.
type replyReader struct {
	values []rueidis.RedisMessage
	err    error
}

// readerOf returns a reader of the values of a list.
func readerOf(list rueidis.RedisMessage) *replyReader {
	values, err := list.ToArray()
	return &replyReader{values, err}
}

// next returns the next value; a nil value after the last one.
func (r *replyReader) next() rueidis.RedisMessage {
	if len(r.values) == 0 {
		if r.err == nil {
			r.err = errors.New("a value is missing")
		}
		return rueidis.RedisMessage{}
	}
	value := r.values[0]
	r.values = r.values[1:]
	return value
}

func (r *replyReader) note(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *replyReader) integer() int64 {
	value := r.next()
	n, err := value.AsInt64()
	r.note(err)
	return n
}

func (r *replyReader) text() string {
	value := r.next()
	text, err := value.ToString()
	r.note(err)
	return text
}

func (r *replyReader) list() []rueidis.RedisMessage {
	value := r.next()
	list, err := value.ToArray()
	r.note(err)
	return list
}

func parseGlanced(row rueidis.RedisMessage) (Glanced, error) {
	if text, err := row.ToString(); err == nil {
		return Glanced{Err: returnedError(glanceScript.name, text)}, nil
	}
	r := readerOf(row)
	g := Glanced{
		Scheduled: r.integer(), Overdue: r.integer(), Metas: r.integer(), Entries: r.integer(), Dead: r.integer(),
		First: r.text(), Settings: r.next(), Groups: r.next(),
	}
	for _, one := range r.list() {
		group := readerOf(one)
		g.Details = append(g.Details, GlancedGroup{group.text(), group.next(), ParseHeldNotes(group.text()), group.next()})
		r.note(group.err)
	}
	for _, one := range r.list() {
		entry := readerOf(one)
		g.Newest = append(g.Newest, GlancedEntry{entry.text(), parseMillis(entry.text()), int(entry.integer())})
		r.note(entry.err)
	}
	if letter := r.next(); letter.IsNil() {
		g.NoRoom = true
	} else {
		text, err := letter.ToString()
		r.note(err)
		g.Letter = text
	}
	for _, member := range r.list() {
		text, err := member.ToString()
		r.note(err)
		g.Retries = append(g.Retries, strings.Clone(text))
	}
	return g, r.err
}
