package lua

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// lettersOwn matches the fields that get a prefix in a dead letter.
var lettersOwn = regexp.MustCompile(`^(message:)*(group|entry|reason|dead_ms|meta|raw)$`)

// inLetter returns the fields of a message as they are named in a dead letter.
func inLetter(message map[string]string) map[string]string {
	letter := map[string]string{}
	for name, value := range message {
		if lettersOwn.MatchString(name) {
			name = "message:" + name
		}
		letter[name] = value
	}
	return letter
}

// A foreign field with the name of a dead letter's own field was overwritten by it, or dropped, silently. It is renamed
// in the letter, and a redrive restores the name. So is a field whose name looks like a renamed one.
func TestFieldsNamedLikeThoseOfLettersMakeWayAndComeBack(t *testing.T) {
	everywhere(t, func(b *rig) {
		foreign := map[string]string{}
		for _, name := range []string{"group", "entry", "reason", "dead_ms", "meta", "raw", "message:group",
			"message:message:raw", "message:other", "other:group"} {
			foreign[name] = "foreign " + name
		}
		foreign["dead_ms"] = "77"
		fields := []string{"id", "m", "payload", "body"}
		meta := `{"id":"m","for":"gone"`
		for _, name := range slices.Sorted(maps.Keys(foreign)) {
			fields = append(fields, name, foreign[name])
			meta += fmt.Sprintf(`,%q:%q`, name, foreign[name])
		}
		for reason, bury := range map[string]func(b *rig){
			ReasonDeadLetter: func(b *rig) {
				b.do(append([]string{"XADD", b.k.Stream, "*"}, fields...)...)
				b.fail("g", b.read("g", "c", 1)[0].EntryID, ActionDead, ReasonDeadLetter, "boom")
			},
			ReasonMalformed: func(b *rig) {
				b.do(append([]string{"XADD", b.k.Stream, "*", "attempt", "x"}, fields...)...)
				b.fail("g", b.read("g", "c", 1)[0].EntryID, ActionRetry, "", "boom")
			},
			ReasonGroupGone: func(b *rig) {
				b.do("HSET", b.k.Meta, "m", meta+"}")
				b.do("ZADD", b.k.Due, "5", "m")
				redistest.Want(b, "buried", b.drain(1).Dead, 1)
			},
			ReasonExpired: func(b *rig) {
				b.do("HSET", b.k.Meta, "m", meta+`,"expires_ms":"7"}`)
				b.do("ZADD", b.k.Due, "5", "m")
				redistest.Want(b, "buried", b.drain(1).Dead, 1)
			},
		} {
			b := b.queue("q-" + reason)
			b.groups("g")
			bury(b)
			letter := b.entries(b.k.Dead)[0]
			redistest.Want(b, "reason", letter.Reason, reason)
			redistest.Want(b, "group", letter.Group == "g" || letter.Group == "gone", true)
			wantList(b, reason+": redriven", b.redrive(Redrive{Letter: letter.EntryID, When: After(0), To: "g"}),
				RedriveScheduled)
			b.makeDue()
			redistest.Want(b, "moved", b.drain(1).Moved, 1)
			flat := b.entries(b.k.Stream)
			e := flat[len(flat)-1]
			got := map[string]string{"group": e.Group, "entry": e.Entry, "reason": e.Reason,
				"dead_ms": fmt.Sprint(e.Dead.UnixMilli())}
			maps.Copy(got, e.Extra)
			for name, value := range foreign {
				if got[name] != value {
					b.Errorf("%s: field %s is %q", reason, name, got[name])
				}
			}
		}
	})
}
