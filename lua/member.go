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
	MemberFirst MemberKind = iota // a first-time message; the member is its ID
	// MemberRetry is the retry of a failed delivery. A member that an older release redrove or imported, or that
	// another program made up, has this kind, too.
	MemberRetry
	MemberRedriven // a redriven dead letter
	MemberImported // an entry that was ready or pending when it was exported
)

// OfOverlap stands for the entry ID in the member of a retry, or of an imported entry, if the message has FieldOverlap.
// So the member follows from the message, and FindUnfinished can look it up.
const OfOverlap = "0-0"

// Member is a parsed member of the schedule.
type Member struct {
	Kind  MemberKind
	ID    string
	Group string // the group that the message is for; "" = all
	Of    string // entry ID: of the stream entry for a retry or an imported entry, of the dead letter for a redriven one
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
