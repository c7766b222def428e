package messages

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
)

// If an action would change nothing, nobody is asked. Then what matches a moment later must stay.
func TestNothingIsChangedWithoutAQuestion(t *testing.T) {
	t.Parallel()
	for matching, want := range map[int64]string{
		0: "[true] nothing matches: purged 0, gone 0; looked at 5",
		3: "[true ask 3 false] purged 4, gone 0; looked at 5",
	} {
		var out bytes.Buffer
		var calls []any
		run := func(dryRun bool, _ func(admin.ActResult)) (r admin.ActResult, err error) {
			calls = append(calls, dryRun)
			r.Looked, r.Changed = 5, matching
			if !dryRun {
				r.Changed++ // a message that came meanwhile
			}
			r.Found = r.Changed
			return r, nil
		}
		ask := func(n int64) error {
			calls = append(calls, "ask", n)
			return nil
		}
		a := &cli.App{Output: output.Output{Out: &out, Err: &out}}
		err := actWithConsent(a, &actFlags{}, admin.Action{Kind: admin.ActPurge}, "purged", run, ask)
		if got := fmt.Sprint(calls, " ", strings.TrimSpace(out.String())); got != want || err != nil {
			t.Errorf("%s, want %s; %v", got, want, err)
		}
	}
}
