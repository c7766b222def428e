package lua

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"testing"
)

// lettersOwn matches fields that make way in a dead letter.
var lettersOwn = regexp.MustCompile(`^(message:)*(group|entry|reason|dead_ms|meta|raw)$`)

// inLetter returns the fields of a message as a dead letter has them.
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

// A foreign field with a name that dead letters have of their own was overwritten by it, or dropped; nobody was told. It makes way in the
// letter, and a redrive gives it back. One whose name looks like one that made way does as well.
func TestFieldsNamedLikeThoseOfLettersMakeWayAndComeBack(t *testing.T) {
	everywhere(t, func(b *bench) {
		foreign := map[string]string{}
		for _, name := range []string{"group", "entry", "reason", "dead_ms", "meta", "raw", "message:group", "message:message:raw", "message:other", "other:group"} {
			foreign[name] = "foreign " + name
		}
		foreign["dead_ms"] = "77"
		fields := []string{"id", "m", "payload", "body"}
		meta := `{"id":"m","for":"gone"`
		for _, name := range slices.Sorted(maps.Keys(foreign)) {
			fields = append(fields, name, foreign[name])
			meta += fmt.Sprintf(`,%q:%q`, name, foreign[name])
		}
		for reason, bury := range map[string]func(b *bench){
			ReasonDeadLetter: func(b *bench) {
				b.do(append([]string{"XADD", b.k.Stream, "*"}, fields...)...)
				b.fail("g", b.read("g", "c", 1)[0].EntryID, ActionDead, ReasonDeadLetter, "boom")
			},
			ReasonMalformed: func(b *bench) {
				b.do(append([]string{"XADD", b.k.Stream, "*", "attempt", "x"}, fields...)...)
				b.fail("g", b.read("g", "c", 1)[0].EntryID, ActionRetry, "", "boom")
			},
			ReasonGroupGone: func(b *bench) {
				b.do("HSET", b.k.Meta, "m", meta+"}")
				b.do("ZADD", b.k.Due, "5", "m")
				want(b, "buried", b.drain(1).Dead, 1)
			},
			ReasonExpired: func(b *bench) {
				b.do("HSET", b.k.Meta, "m", meta+`,"expires_ms":"7"}`)
				b.do("ZADD", b.k.Due, "5", "m")
				want(b, "buried", b.drain(1).Dead, 1)
			},
		} {
			b := b.queue("q-" + reason)
			b.groups("g")
			bury(b)
			letter := b.entries(b.k.Dead)[0]
			want(b, "reason", letter.Reason, reason)
			want(b, "group", letter.Group == "g" || letter.Group == "gone", true)
			wantList(b, reason+": redriven", b.redrive(Redrive{Letter: letter.EntryID, When: After(0), To: "g"}), RedriveScheduled)
			b.makeDue()
			want(b, "moved", b.drain(1).Moved, 1)
			flat := b.entries(b.k.Stream)
			e := flat[len(flat)-1]
			got := map[string]string{"group": e.Group, "entry": e.Entry, "reason": e.Reason, "dead_ms": fmt.Sprint(e.Dead.UnixMilli())}
			maps.Copy(got, e.Extra)
			for name, value := range foreign {
				if got[name] != value {
					b.Errorf("%s: field %s is %q", reason, name, got[name])
				}
			}
		}
	})
}
