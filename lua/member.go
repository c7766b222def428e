package lua

import "strings"

// Separator separates the parts of a schedule member that is not a first-time message. A message ID must not contain
// it.
const Separator = "\x1f"

// MemberKind is the kind of a member of the schedule.
type MemberKind int

// Kinds of members. Each has its own shape, so that a member never overwrites one of another kind:
//
//	ID                                first
//	ID 0x1F group 0x1F ms-seq         retry
//	ID 0x1F group 0x1F dead:ms-seq    redriven
//	ID 0x1F group 0x1F ready:ms-seq   imported
//
// Neither a message ID nor an entry ID contains a separator. So the first and the last one separate the three parts,
// whatever the group's name is.
const (
	MemberFirst MemberKind = iota // a first-time message: its ID
	// of a failed delivery; also one that an older program redrove or imported, or another program made up
	MemberRetry
	MemberRedriven // of a dead letter
	MemberImported // of an entry that was ready or pending when it was exported
)

// OfOverlap replaces the entry ID in the name of a retry, or of an imported entry, of a message with FieldOverlap: so
// the name follows from the message, and FindUnfinished can look it up.
const OfOverlap = "0-0"

// Member is a parsed member of the schedule.
type Member struct {
	Kind  MemberKind
	ID    string
	Group string // the group that it is for; "" = all
	Of    string // retry, imported: ID of the stream entry; redriven: of the dead letter
}

var memberMarks = map[MemberKind]string{MemberRetry: "", MemberRedriven: "dead:", MemberImported: "ready:"}

// ParseMember parses any member.
func ParseMember(member string) Member {
	first, last := strings.Index(member, Separator), strings.LastIndex(member, Separator)
	if first < 0 || first == last {
		return Member{ID: member}
	}
	m := Member{Kind: MemberRetry, ID: member[:first], Group: member[first+1 : last], Of: member[last+1:]}
	for _, kind := range []MemberKind{MemberRedriven, MemberImported} {
		if of, ok := strings.CutPrefix(m.Of, memberMarks[kind]); ok {
			m.Kind, m.Of = kind, of
		}
	}
	return m
}

// String returns the member.
func (m Member) String() string {
	if m.Kind == MemberFirst {
		return m.ID
	}
	return m.ID + Separator + m.Group + Separator + memberMarks[m.Kind] + m.Of
}
