package campaign

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// Only a race of the client library on a dead connection is ignored (see reportRaces). A report that differs from this
// race in one line is a race of ours, and must be reported.
func TestRacesOfOursAreNoRacesOfADeadConnection(t *testing.T) {
	t.Parallel()
	const (
		write  = "WARNING: DATA RACE\nWrite at 0x1 by goroutine 21:\n  github.com/redis/rueidis/internal/cmds.Put()\n\n"
		writer = "  github.com/redis/rueidis.writeCmd()\n  github.com/redis/rueidis.(*pipe)._backgroundWrite()\n\n"
		theirs = "Goroutine 21 (running) created at:\n  main()\n\nGoroutine 7 (finished) created at:\n  pipe()\n"
	)
	for report, want := range map[string]bool{
		write + "Previous read at 0x1 by goroutine 7:\n" + writer + theirs:                                        true,
		write + "Previous write at 0x1 by goroutine 7:\n" + writer + theirs:                                       false,
		write + "Previous read at 0x1 by goroutine 7:\n  stream.(*Worker).Run()\n\n" + theirs:                     false,
		write + "Previous read at 0x1 by goroutine 7:\n" + writer + "Goroutine 7 (running) created at:\n  pipe()": false,
	} {
		redistest.Want(t, report, isOfADeadConnection(report), want)
		dir, line := t.TempDir(), "==================\n"
		log := line + report + line + line + report + line
		if err := os.WriteFile(filepath.Join(dir, raceLog+".42"), []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		found, err := races(dir)
		redistest.Want(t, "reports", fmt.Sprint(len(found), err), map[bool]string{true: "0 <nil>", false: "2 <nil>"}[want])
	}
}
