package campaign

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// raceLog is the log file of the race detector. The process ID follows after a dot.
const raceLog = "race"

// reportRaces fails the test for each data race that a process reported, except for one in the client library
// (rueidis 1.0.79). When a connection dies, a read in flight is sent again on another connection, and its command is
// reused after the answer. The writer of the dead connection read it earlier, without synchronization.
func reportRaces(t testing.TB, dir string) {
	reports, err := races(dir)
	if err != nil {
		t.Error(err)
	}
	for _, one := range reports {
		t.Error(one)
	}
}

// races returns the reports in a directory, each with the name of its file, except for those of dead connections.
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

// isOfADeadConnection reports whether the earlier access was by the writer of a connection that has ended.
func isOfADeadConnection(report string) bool {
	_, before, found := strings.Cut(report, "Previous read")
	before, goroutines, _ := strings.Cut(before, "Goroutine ")
	return found && strings.Contains(before, "rueidis.(*pipe)._backgroundWrite()") && strings.Contains(goroutines, "(finished)")
}
