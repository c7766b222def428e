package admin

import (
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/stream/deadletter"
)

// LetterGroup counts the dead letters of one group with one reason and one error. DeadLetters.Summarize returns it.
//
//	type LetterGroup struct {
//		Group  string
//		Reason string
//		Error  string // its first line, with # for IDs, addresses, durations and long numbers
//		Count  int
//		Oldest time.Time
//		Newest time.Time
//	}
type LetterGroup = deadletter.LetterGroup

// DeadLetters reads, redrives and purges the dead letters of queues. Name a dead letter by its Letter.Letter. For one
// that is gone Show returns ErrNotFound; the other methods do not count it. List yields its first error as its last
// value.
//
//	type DeadLetters struct {
//		// contains no exported fields
//	}
//
//	func (*DeadLetters) Count(ctx context.Context, queue string, f LetterFilter) (n int, err error)
//	func (*DeadLetters) List(ctx context.Context, queue string, f LetterFilter) iter.Seq2[Letter, error]
//	func (*DeadLetters) Observed(o bridge.Observer) *DeadLetters
//	func (*DeadLetters) Purge(ctx context.Context, queue string, letters []string) (purged int, err error)
//	func (*DeadLetters) PurgeProgress(ctx context.Context, queue string, f LetterFilter, progress func(purged int)) (int, error)
//	func (*DeadLetters) Redrive(ctx context.Context, queue string, letters []string, o RedriveOptions) (RedriveResult, error)
//	func (*DeadLetters) RedriveMatching(ctx context.Context, queue string, f LetterFilter, o RedriveOptions) (RedriveResult, error)
//	func (*DeadLetters) Show(ctx context.Context, queue, letter string) (Letter, error)
//	func (*DeadLetters) Stored(ctx context.Context, queue string, f LetterFilter) iter.Seq2[deadletter.Stored, error]
//	func (*DeadLetters) Summarize(ctx context.Context, queue string, f LetterFilter) ([]LetterGroup, error)
type DeadLetters = deadletter.DeadLetters

// DeadLetters returns a handle on the dead letters of the prefix. Redis is not touched.
func (a *Admin) DeadLetters() *DeadLetters {
	return deadletter.New(a.redis.Client, a.prefix).Observed(a.observer)
}

// Letter is a dead letter: a message in the state of its last failure in a group. It exists until it is redriven or
// purged.
//
//	type Letter struct {
//		// its ID in the stream of dead letters; in a partition other than 0, <partition>/<ID>
//		Letter      string
//		ID          string // of the message
//		Group       string
//		Reason      string
//		Error       string
//		Attempt     int
//		Dead        time.Time
//		Due         time.Time
//		Entry       string // the stream entry that failed
//		MaxAttempts int
//		Expires     time.Time
//		Headers     map[string]string
//		Payload     Payload // nil when the body was lost or could not be kept
//		Extra       map[string]string
//	}
type Letter = deadletter.Letter

// LetterFilter selects dead letters. A letter must match all fields that are set. The zero value selects all letters
// of a queue.
//
//	type LetterFilter struct {
//		Group     string        // exactly this one
//		Reason    string        // exactly this one: a lua.Reason constant
//		ErrorText string        // somewhere in the error
//		ID        string        // of the message; * stands for any text, ? for one character
//		OlderThan time.Duration // dead for at least so long, by the server's clock
//		NewerThan time.Duration // dead for at most so long
//		Limit     int           // at most so many
//		Newest    bool          // newest first
//	}
type LetterFilter = deadletter.Filter

// RedriveOptions control a redrive. The zero value schedules each message unchanged, at once, for the group in which it
// failed.
//
//	type RedriveOptions struct {
//		Payload     *[]byte            // replaces the payload of each; needed for a letter without one
//		Headers     *map[string]string // replaces the headers of each
//		Delay       time.Duration      // until they are due, counted from when each is redriven
//		Spread      time.Duration      // each is due at a random moment within so long after that
//		To          string             // the group that gets them; "" = for each the one it failed in
//		MaxAttempts int                // replaces that of each; 0 = keep
//		Expires     time.Time          // of each, by the server's clock; zero = never
//		// letters per second, over any time; after a stall at most one second's worth is sent at once; 0 = no limit
//		Rate   float64
//		DryRun bool // changes nothing, and counts what would happen
//		// Selected is called for each letter before anything is done with it.
//		Selected func(Letter)
//		// Progress is called after each call to the server with the number of letters done so far, and of all there are
//		// to do.
//		Progress func(done, total int)
//	}
type RedriveOptions = deadletter.RedriveOptions

// RedriveResult counts the results of a redrive.
//
//	type RedriveResult struct {
//		Scheduled int
//		Gone      int // redriven or purged by someone else, or never there
//		// left as they are: their body was lost or could not be kept, and no payload was given
//		NoPayload int
//		// likewise: their headers and other fields cannot be read or are too much, and no headers were given
//		Unreadable int
//		GroupGone  int      // likewise: the stream does not have their group
//		GoneGroups []string // these groups
//	}
//
//	func (RedriveResult) Left() int
type RedriveResult = deadletter.RedriveResult

// Payload holds the bytes of a message. In JSON it is a string if it is UTF-8, and otherwise an object {"base64": …}.
//
//	type Payload []byte
type Payload = view.Payload
