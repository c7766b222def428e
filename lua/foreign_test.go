package lua

import (
	"slices"
	"strings"
	"testing"
)

// Mistakes of clients in other languages are refused before anything is done, and named: a misspelt action is not taken
// for a retry, and an invalid number raises no error in the middle.
func TestMistakesOfOtherClientsAreRefused(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.fixture()
		k := b.k
		exit := []string{k.Stream, k.Due, k.Payload, k.Meta, k.Dead, k.Wake, k.Turns, k.Policy}
		good := []string{"5-1", "m", "retry", "", "", ""}
		for _, c := range []struct {
			s    *script
			keys []string
			args []string
			says string
			more []string // keys after that of the history
		}{
			{retryScript, exit, append([]string{"g", "5", "1000"}, append(good, "6-1", "m2", "dead_letter", "", "", "")...),
				"dead_letter", nil},
			{retryScript, exit, append([]string{"g", "5", "1000"}, append(good, "6-1", "m2", "retry", "5s", "", "")...), "5s", nil},
			{retryScript, exit, append([]string{"g", "5", ""}, good...), "delays", nil},
			{retryScript, exit, append([]string{"g", "", "1000"}, good...), "max_attempts", nil},
			{rescheduleScript, []string{k.Due, k.Wake, k.Policy}, []string{"due", "soon"}, "soon",
				[]string{k.Meta, k.Turns}},
			{redriveScript, []string{k.Dead, k.Due, k.Payload, k.Meta, k.Wake, k.Stream, k.Policy}, []string{"4-1", "soon", "", "", "", ""},
				"soon", nil},
			{enqueueScript, []string{k.Due, k.Payload, k.Meta, k.Stream, k.Wake, k.Seen, k.Policy},
				[]string{"", "", "", "n", "+0", "", "", ""}, "token_ms", []string{k.Turns}},
		} {
			before := b.dump()
			keys := append(slices.Concat(c.keys, []string{k.History}), c.more...)
			_, err := c.s.run(b.ctx, b.c, keys, append(slices.Clone(c.args), "who"))
			if err == nil || !strings.Contains(err.Error(), c.says) || Ambiguous(err) || Temporary(err) {
				b.Errorf("%s with %q: %v", c.s.name, c.args, err)
			}
			for key, now := range b.dump() {
				if now != before[key] {
					b.Errorf("%s with %q changed %s", c.s.name, c.args, key)
				}
			}
		}
	})
}
