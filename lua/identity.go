package lua

import (
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
)

// Identity says which process a bridge is. It is the bridge's member in the heartbeats, in words separated by one
// space:
//
//	ULID                         from an old release; the ULID tells when the bridge started
//	ULID host pid version        from a release without protocol levels
//	ULID host pid version p2     from this release: "p" and the protocol level
//	ULID anything                from a later release; we ignore the words that follow the level
//
// Bridges of all versions agree on the owner of a queue, because they hash whole members.
type Identity struct {
	ID      string // ULID of its start
	Host    string // name of the bridge's machine or container, as the bridge was told; "" = unknown
	PID     int    // 0 = unknown
	Version string // "" = unknown
	Level   int    // the protocol level, see the constant Level; 1 or less = unknown
}

// Bounds of an identity.
const (
	MaxIdentityBytes = 256 // the script heartbeat has the same bound
	maxHostBytes     = 63
	maxVersionBytes  = 64
	maxLevel         = 999_999
)

// NewIdentity returns the identity of a bridge that starts now. In host and version, it replaces characters that could
// harm terminals or parsers. If version is empty, it takes this module's version from the program's build info.
func NewIdentity(host string, pid int, version string) Identity {
	if version == "" {
		version = moduleVersion()
	}
	return Identity{ulid.Make().String(), plainWord(host, maxHostBytes), max(0, pid), plainWord(version, maxVersionBytes), Level}
}

// String returns the bridge's member in the heartbeats.
func (i Identity) String() string {
	if i.Host == "" && i.PID == 0 && i.Version == "" && i.Level <= 1 {
		return i.ID
	}
	member := i.ID + " " + orDash(plainWord(i.Host, maxHostBytes)) + " " + strconv.Itoa(max(0, i.PID)) + " " +
		orDash(plainWord(i.Version, maxVersionBytes))
	if i.Level > 1 {
		member += " p" + strconv.Itoa(min(i.Level, maxLevel))
	}
	return member
}

// CheckIdentity refuses an identity that ParseIdentity could not read back.
func CheckIdentity(i Identity) error {
	if _, ok := ParseIdentity(i.String()); !ok {
		return Invalid("identity", i.ID, "must be made by NewIdentity")
	}
	return nil
}

// ParseIdentity parses a member of the heartbeats. It returns false if no bridge can have written the member.
func ParseIdentity(member string) (Identity, bool) {
	if len(member) > MaxIdentityBytes {
		return Identity{}, false
	}
	for i := range len(member) {
		if member[i] < ' ' || member[i] > '~' {
			return Identity{}, false
		}
	}
	words := strings.Split(member, " ")
	if id, err := ulid.ParseStrict(words[0]); err != nil || id.String() != words[0] {
		return Identity{}, false
	}
	i := Identity{ID: words[0], Level: 1}
	if len(words) >= 4 {
		i.Host, i.Version = fromDash(plainWord(words[1], maxHostBytes)), fromDash(plainWord(words[3], maxVersionBytes))
		if n, err := strconv.ParseUint(words[2], 10, 31); err == nil {
			i.PID = int(n)
		}
	}
	if len(words) >= 5 {
		i.Level = parseLevel(words[4])
	}
	return i, true
}

// parseLevel parses "p2". Any other text is level 1.
func parseLevel(word string) int {
	number, ok := strings.CutPrefix(word, "p")
	level, err := strconv.Atoi(number)
	if !ok || err != nil || level < 1 || level > maxLevel || number != strconv.Itoa(level) {
		return 1
	}
	return level
}

// Started returns when the bridge started, by the bridge's own clock; the zero time if the identity has no ID.
func (i Identity) Started() time.Time {
	id, err := ulid.ParseStrict(i.ID)
	if err != nil {
		return time.Time{}
	}
	return id.Timestamp()
}

// plainWord cuts a text, and replaces characters that may have a meaning to terminals, shells and parsers.
func plainWord(text string, most int) string {
	text = text[:min(len(text), most)]
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._+-", r) {
			return r
		}
		return '_'
	}, text)
}

func orDash(word string) string {
	if word == "" {
		return "-"
	}
	return word
}

func fromDash(word string) string {
	if word == "-" {
		return ""
	}
	return word
}

// moduleVersion returns this module's version in the program that uses it; "" if its build info has none.
func moduleVersion() string {
	const path = "github.com/duestream/duestream"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == path {
			return strings.Trim(m.Version, "()")
		}
	}
	return ""
}
