package campaign

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// raceLog is what the race detector of a process writes to, with its process ID behind a dot.
const raceLog = "race"

// reportRaces fails the test for each data race that a process reported, but for one of the client library (rueidis 1.0.79): when
// a connection dies, a read that was on its way is sent again on another one, and its command is reused once it is answered. The
// writer of the dead connection has read it before, with nothing that orders the two.
func reportRaces(t testing.TB, dir string) {
	reports, err := races(dir)
	if err != nil {
		t.Error(err)
	}
	for _, one := range reports {
		t.Error(one)
	}
}

// races returns the reports in a directory, each behind the name of its file, but for those of dead connections.
func races(dir string) (reports []string, failed error) {
	logs, failed := filepath.Glob(filepath.Join(dir, raceLog+".*"))
	for _, log := range logs {
		text, err := os.ReadFile(log)
		failed = errors.Join(failed, err)
		for _, one := range strings.Split(string(text), "==================") {
			if strings.Contains(one, "DATA RACE") && !isOfADeadConnection(one) {
				reports = append(reports, filepath.Base(log)+":"+one)
			}
		}
	}
	return reports, failed
}

// isOfADeadConnection says whether the earlier access of a race was made by the writer of a connection that has ended.
func isOfADeadConnection(report string) bool {
	_, before, found := strings.Cut(report, "Previous read")
	before, goroutines, _ := strings.Cut(before, "Goroutine ")
	return found && strings.Contains(before, "rueidis.(*pipe)._backgroundWrite()") && strings.Contains(goroutines, "(finished)")
}
