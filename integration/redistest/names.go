package redistest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

const cleanupTimeout = 10 * time.Second

// Queue returns a queue name that no other test uses.
func Queue(t testing.TB) string { return unique("q", t) }

// Prefix returns a key prefix that no other test uses. When the test ends, it deletes all keys that start with it,
// with SCAN and UNLINK in bounded steps. Keys of other tests on the same server are not touched.
func (s *Server) Prefix(t testing.TB) string {
	t.Helper()
	prefix := unique("t", t)
	if s.tb == nil { // a server that belongs to one test ends with all its keys
		t.Cleanup(func() {
			if err := s.deleteKeys(prefix + "*"); err != nil {
				t.Errorf("redistest: delete the keys of %s: %v", prefix, err)
			}
		})
	}
	return prefix
}

func unique(kind string, t testing.TB) string {
	return fmt.Sprintf("%s-%08x-%s", kind, rand.Uint32(), sanitised(t.Name()))
}

// sanitised keeps only characters that a queue name may have, and at most 60 bytes.
func sanitised(name string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return '_'
	}, name)
	return clean[:min(len(clean), 60)]
}

func (s *Server) deleteKeys(pattern string) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	opt := s.opt
	opt.DisableCache, opt.ForceSingleClient = true, true
	c, err := rueidis.NewClient(opt)
	if c != nil {
		defer c.Close()
	}
	if err != nil {
		return err
	}
	for cursor := uint64(0); ; {
		scan, err := c.Do(ctx, c.B().Scan().Cursor(cursor).Match(pattern).Count(1000).Build()).AsScanEntry()
		if err != nil {
			return err
		}
		if len(scan.Elements) > 0 {
			if err := c.Do(ctx, c.B().Arbitrary("UNLINK").Keys(scan.Elements...).Build()).Error(); err != nil {
				return err
			}
		}
		if cursor = scan.Cursor; cursor == 0 {
			return nil
		}
	}
}
