package lua

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/duestream/duestream/integration/redistest"
)

// A dead letter may have the same ID as an entry, because both IDs are times. Before, a redriven letter got the name of
// that entry's retry in the schedule, and one overwrote payload, headers and due time of the other.
func TestMembersOfRetriesAndRedrivenLettersCannotMeet(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for _, first := range []string{"retry", "redrive"} {
			b := b.queue(first)
			b.groups("g")
			b.enqueue(Item{ID: "m", When: After(0), Payload: []byte("of the entry")})
			entry := b.read("g", "c", 1)[0].EntryID
			b.do("XADD", b.k.Dead, entry, "id", "m", "payload", "of the letter", "group", "g")
			if first == "retry" {
				b.fail("g", entry, ActionRetry, "", "boom")
			}
			wantList(b, "redriven", b.redrive(Redrive{Letter: entry, When: After(0)}), RedriveScheduled)
			if first == "redrive" {
				b.fail("g", entry, ActionRetry, "", "boom")
			}
			b.wantState("due=2 payload=2 meta=2 stream=0 dead=0 g=0", "g")
			b.makeDue()
			b.drain(10)
			got := map[string]int{}
			for _, e := range b.read("g", "c", 10) {
				got[string(e.Payload)] = e.Attempt
			}
			redistest.Want(b, "delivered, and their attempts", fmt.Sprint(got), "map[of the entry:2 of the letter:1]")
		}
	})
}

// Whatever the names of IDs, groups and entries are: a member stands for one message alone, and tells which.
func TestMembersOfDifferentMessagesDiffer(t *testing.T) {
	entry := rapid.Custom(func(t *rapid.T) string {
		return fmt.Sprintf("%d-%d", rapid.Uint64Range(0, 3).Draw(t, "ms"), rapid.Uint64Range(0, 3).Draw(t, "seq"))
	})
	text := rapid.StringOfN(rapid.SampledFrom([]rune("adery:1-0\x1f+é")), 0, 12, -1) // characters of which the shapes consist
	member := rapid.Custom(func(t *rapid.T) Member {
		m := Member{
			Kind: MemberKind(rapid.IntRange(0, len(memberMarks)).Draw(t, "kind")),
			ID:   strings.ReplaceAll(text.Draw(t, "ID"), Separator, "."),
		}
		if m.Kind != MemberFirst {
			m.Group, m.Of = text.Draw(t, "group"), entry.Draw(t, "of")
		}
		return m
	})
	// Not beside parallel tests: the parallel TestNoScriptTouchesMoreThanItsBudget sets the flags that this one reads.
	rapid.Check(t, func(t *rapid.T) {
		a, b := member.Draw(t, "a"), member.Draw(t, "b")
		if got := ParseMember(a.String()); got != a {
			t.Fatalf("%#v is read back from %q as %#v", a, a, got)
		}
		if a != b && a.String() == b.String() {
			t.Fatalf("%#v and %#v are both called %q", a, b, a)
		}
	})
}

// The scripts write only the shapes that ParseMember knows.
func TestScriptsNameMembersByTheirShapes(t *testing.T) {
	t.Parallel()
	shape := regexp.MustCompile(`\w+ \.\. SEP \.\. group \.\. SEP \.\. ('[^']*'(?: \.\. \w+)?|\w+)`)
	found := map[string]string{}
	for _, file := range []string{"redrive.lua", "lib/exit.lua"} {
		for _, m := range shape.FindAllStringSubmatch(readSource(file), -1) {
			found[file] = strings.TrimSpace(found[file] + " " + m[1])
		}
	}
	redistest.Want(t, "shapes", fmt.Sprint(found), "map[lib/exit.lua:entry '0-0' redrive.lua:'dead:' .. letter]")
	for _, any := range []string{"m" + Separator + "g" + Separator + "17-0", Separator, Separator + Separator, "a" + Separator +
		"b", ""} {
		if got := ParseMember(any).String(); got != any {
			t.Errorf("%q comes back as %q", any, got)
		}
	}
}
