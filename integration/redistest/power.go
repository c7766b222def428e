package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const (
	syncLibrary = "synced.so"
	syncLog     = "synced.log"
)

// OwnOn returns a server for this test that runs an image with an append-only file, and whose machine can lose its
// power: see [Server.CutPower]. It returns false if the image is not there. It fails the test when there is no C
// compiler, and says what to do.
func OwnOn(t testing.TB, image string, args ...string) (*Server, bool) {
	t.Helper()
	if !hasImage(image) {
		return nil, false
	}
	dir := t.TempDir()
	if err := buildLibrary("synced.c", filepath.Join(dir, syncLibrary)); err != nil {
		t.Fatalf("redistest: a server whose power can be cut needs a C compiler (apt-get install gcc libc6-dev): %v", err)
	}
	args = append([]string{"--appendonly", "yes"}, args...)
	s, err := startContainer(image, dir, args, "LD_PRELOAD=/data/"+syncLibrary, "DUESTREAM_SYNC_LOG=/data/"+syncLog)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	s.owned(t)
	return s, true
}

// CutPower ends a server from [OwnOn] as a power failure may. Of its append-only file, only the part remains that it
// had asked the system to write to disk. Start starts the server again.
func (s *Server) CutPower() {
	s.control("cut the power of", func(inst instance) error {
		if err := inst.kill(); err != nil {
			return err
		}
		return forgetUnsynced(inst.dir())
	})
}

func forgetUnsynced(dir string) error {
	onDisk, err := readSyncLog(filepath.Join(dir, syncLog))
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "appendonlydir", "*.incr.aof"))
	if err == nil && len(files) == 0 {
		err = errors.New("no append-only file")
	}
	for _, file := range files {
		err = errors.Join(err, os.Truncate(file, onDisk[filepath.Base(file)]))
	}
	return err
}

// readSyncLog returns how many bytes of each file are on disk.
func readSyncLog(path string) (map[string]int64, error) {
	log, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	onDisk := map[string]int64{}
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		size, name, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.ParseInt(size, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", syncLog, err)
		}
		onDisk[filepath.Base(name)] = n
	}
	return onDisk, lines.Err()
}
