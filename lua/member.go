package lua

import "strings"

// Separator parts the members of the schedule that are no first-time message. No message ID may hold it.
const Separator = "\x1f"

// MemberKind says what a member of the schedule stands for.
type MemberKind int

// Kinds of members. Each has a shape of its own, so that nothing that is written for one is written over another:
//
//	ID                                first
//	ID 0x1F group 0x1F ms-seq         retry
//	ID 0x1F group 0x1F dead:ms-seq    redriven
//	ID 0x1F group 0x1F ready:ms-seq   imported
//
// An ID holds no separator, and no entry ID does: whatever the group is called, the first and the last one part the three.
const (
	MemberFirst MemberKind = iota // a first-time message: its ID
	// of a delivery that failed; and whatever an older program redrove or imported, or somebody made up
	MemberRetry
	MemberRedriven // of a dead letter
	MemberImported // of an entry that was ready, or pending, where it was exported
)

// OfOverlap stands for the entry ID in the names of a retry, and of an imported entry, of a message with FieldOverlap:
// who asks whether anything is left of the message knows these names.
const OfOverlap = "0-0"

// Member is the name of a scheduled message, taken apart.
type Member struct {
	Kind  MemberKind
	ID    string
	Group string // the group that it is for; "" = all
	Of    string // retry, imported: ID of the stream entry; redriven: of the dead letter
}

var memberMarks = map[MemberKind]string{MemberRetry: "", MemberRedriven: "dead:", MemberImported: "ready:"}

// ParseMember takes any member apart.
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

// String is the member.
func (m Member) String() string {
	if m.Kind == MemberFirst {
		return m.ID
	}
	return m.ID + Separator + m.Group + Separator + memberMarks[m.Kind] + m.Of
}
