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

// A library that is put before the server's C library writes a line to a log after each fsync: how many bytes of which
// file are on disk.
const (
	syncLibrary = "synced.so"
	syncLog     = "synced.log"
)

// OwnOn returns a server for this test that runs an image with an append-only file. [Server.CutPower] can end it as a
// power failure does. OwnOn returns false if the image is not there. It fails the test when there is no C compiler, and
// says what to do.
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

// CutPower ends a server from [OwnOn] as a power failure may. Of the append-only file, only the part remains that the
// server had asked the system to write to disk (fsync). Start starts the server again.
func (s *Server) CutPower() {
	s.control("cut the power of", func(inst instance) error {
		if err := inst.kill(); err != nil {
			return err
		}
		return forgetUnsynced(inst.dir())
	})
}

// forgetUnsynced cuts the append-only files to the length that is on disk.
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

// readSyncLog returns how many bytes of each file are on disk, by file name. The last line about a file counts.
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
