package redistest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// ctxFor returns the context of the test with a timeout.
func ctxFor(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// ownOfEveryKind runs f with a child process and, if an engine has an image, with a container.
func ownOfEveryKind(t *testing.T, f func(t *testing.T, start func(args ...string) *Server)) {
	t.Run("process", func(t *testing.T) {
		f(t, func(args ...string) *Server { return Own(t, args...) })
	})
	err := engine()
	var image string
	for _, i := range Images() {
		if err == nil && image == "" && hasImage(i) {
			image = i
		}
	}
	if image == "" {
		t.Logf("not run in a container: no local engine with one of %v (%v)", Images(), err)
		return
	}
	t.Run("container", func(t *testing.T) {
		f(t, func(args ...string) *Server {
			s, err := ownContainer(t.TempDir(), image, args)
			if err != nil {
				t.Fatal(err)
			}
			s.tb = t
			t.Cleanup(func() {
				if err := s.inst.end(); err != nil {
					t.Error(err)
				}
			})
			return s
		})
	})
}

// A server of a test's own that is killed or stopped, and started again, has the same address and the same data.
func TestOwnServerComesBackWithItsData(t *testing.T) {
	t.Parallel()
	ownOfEveryKind(t, func(t *testing.T, start func(args ...string) *Server) {
		t.Parallel()
		s := start("--appendonly", "yes", "--appendfsync", "always")
		addr := s.Addr()
		for i, end := range []func(){s.Kill, s.Stop} {
			c := s.Client(t)
			ctx := ctxFor(t, 20*time.Second)
			if err := c.Do(ctx, c.B().Incr().Key("starts").Build()).Error(); err != nil {
				t.Fatal(err)
			}
			end()
			if _, err := dialRaw(s.opt); err == nil {
				t.Fatal("the server still accepts connections after its end")
			}
			s.Start()
			c = s.Client(t)
			if n, err := c.Do(ctx, c.B().Get().Key("starts").Build()).AsInt64(); err != nil || n != int64(i+1) {
				t.Fatalf("after start %d: %d, %v", i+1, n, err)
			}
		}
		if s.Addr() != addr {
			t.Fatalf("address was %s and is %s", addr, s.Addr())
		}
	})
}

// Each runs on as many servers as there are subtests, and a second Each uses the same servers again.
func TestEachRunsEveryImageOnce(t *testing.T) {
	seen := map[string]string{} // by address: the subtest
	Each(t, func(t *testing.T, s *Server) {
		if other, ok := seen[s.Addr()]; ok {
			t.Fatalf("the same server as in %s", other)
		}
		seen[s.Addr()] = t.Name()
		c := s.Client(t)
		if err := c.Do(ctxFor(t, 5*time.Second), c.B().Ping().Build()).Error(); err != nil {
			t.Fatal(err)
		}
	})
	again := 0
	Each(t, func(t *testing.T, s *Server) {
		if _, ok := seen[s.Addr()]; !ok {
			t.Fatal("a second server for the same image")
		}
		again++
	})
	if again != len(seen) {
		t.Fatalf("%d servers, then %d", len(seen), again)
	}
}

// In three days, turns returns every image once, apart from the first one, on which the shared server runs. Each day
// has an image of Redis and one of Valkey, if there are any.
func TestEachImageHasItsDay(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for day := range 3 {
		some := turns(Images()[1:], day)
		if len(some) != 2 || strings.Contains(some[0], "valkey") || !strings.Contains(some[1], "valkey") {
			t.Errorf("day %d: %v", day, some)
		}
		for _, image := range some {
			seen[image] = true
		}
	}
	if len(seen) != len(Images())-1 {
		t.Errorf("in three days: %v", seen)
	}
	if some := turns([]string{"valkey/valkey:9.1"}, 5); len(some) != 1 {
		t.Error("where there is one image: ", some)
	}
	if some := turns(nil, 5); len(some) != 0 {
		t.Error("where there is none: ", some)
	}
}

// When a test ends, the keys with its prefix are deleted, also if there are thousands, and the keys of another prefix
// stay.
func TestPrefixLeavesNoKeyBehind(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	c := s.Client(t)
	ctx := ctxFor(t, 20*time.Second)
	var prefix, neighbour string
	t.Run("user", func(t *testing.T) {
		prefix, neighbour = s.Prefix(t), unique("other", t)
		for _, p := range []string{prefix, neighbour} {
			var cmds rueidis.Commands
			for i := range 2500 {
				cmds = append(cmds, c.B().Set().Key(p+":"+string(rune('a'+i%26))+strings.Repeat("x", i/26)).Value("v").Build())
			}
			for _, r := range c.DoMulti(ctx, cmds...) {
				if r.Error() != nil {
					t.Fatal(r.Error())
				}
			}
		}
	})
	count := func(p string) int {
		keys, err := c.Do(ctx, c.B().Keys().Pattern(p+"*").Build()).AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		return len(keys)
	}
	if n := count(prefix); n != 0 {
		t.Errorf("%d keys are left", n)
	}
	if n := count(neighbour); n != 2500 {
		t.Errorf("%d of another prefix's 2500 keys are left", n)
	}
	if err := s.deleteKeys(neighbour + "*"); err != nil {
		t.Error(err)
	}
}

// Queue returns another name at each call, and a valid one whatever the name of the test is.
func TestNamesAreUniqueAndFitForQueues(t *testing.T) {
	t.Parallel()
	t.Run("with a/strange näme {and} "+strings.Repeat("long ", 40), func(t *testing.T) {
		a, b := Queue(t), Queue(t)
		if a == b {
			t.Fatal("the same name twice")
		}
		if strings.Trim(a, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" || len(a) > 80 {
			t.Fatalf("queue name %q", a)
		}
	})
}

// Monitor counts the requests of clients, and not the commands inside scripts. Calls counts both.
func TestMonitorCountsRequestsButNotWhatScriptsDo(t *testing.T) {
	t.Parallel()
	Each(t, func(t *testing.T, s *Server) {
		if s == Shared(t) {
			s = Own(t) // because other tests use the shared server at the same time
		}
		// Use one connection, so that no other one is opened, with its own greeting, while we count.
		c := s.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient, o.PipelineMultiplex = true, -1 })
		ctx := ctxFor(t, 20*time.Second)
		m := s.Monitor(t)
		key, before := s.Prefix(t), s.Calls(t)
		for range 5 {
			c.Do(ctx, c.B().Eval().Script(`for i=1,10 do redis.call('INCR', KEYS[1]) end return 1`).Numkeys(1).Key(key+"n").
				Build())
		}
		c.Do(ctx, c.B().Set().Key(key+"a").Value(`] "x" [0 lua] "`).Build())
		calls := s.Calls(t)
		got := m.Commands()
		if got["EVAL"] != 5 || got["SET"] != 1 || got["INCR"] != 0 {
			t.Fatalf("counted %v", got)
		}
		if calls["incr"]-before["incr"] != 50 || calls["eval"]-before["eval"] != 5 {
			t.Fatalf("commandstats %v, before %v", calls, before)
		}
		m.Reset()
		if n := m.Count(); n != 0 {
			t.Fatalf("%d after a reset", n)
		}
		c.Do(ctx, c.B().Get().Key(key+"a").Build())
		if n := m.Count(); n != 1 {
			t.Fatalf("%d after one request", n)
		}
	})
}

// Eventually waits for its condition, or fails the test with the reason that the condition has given.
func TestEventuallyWaitsOrSaysWhy(t *testing.T) {
	t.Parallel()
	n := 0
	Eventually(t, 10*time.Second, func() (bool, string) { n++; return n == 5, "" })
	var f fakeTB
	f.run(func(tb testing.TB) {
		Eventually(tb, 20*time.Millisecond, func() (bool, string) { return false, "3 of 4" })
	})
	if !f.failed || !strings.Contains(f.log.String(), "3 of 4") {
		t.Fatalf("failed %v: %s", f.failed, f.log.String())
	}
}
