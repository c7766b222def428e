package redistest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

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

func TestPausedServerKeepsConnectionsButDoesNotAnswer(t *testing.T) {
	t.Parallel()
	ownOfEveryKind(t, func(t *testing.T, start func(args ...string) *Server) {
		t.Parallel()
		s := start()
		c := s.Client(t, func(o *rueidis.ClientOption) { o.DisableRetry = true })
		s.Pause()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := c.Do(ctx, c.B().Ping().Build()).Error(); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a paused server said %v", err)
		}
		s.Resume()
		if err := c.Do(ctxFor(t, 5*time.Second), c.B().Ping().Build()).Error(); err != nil {
			t.Fatal(err)
		}
		s.Pause()
		s.Kill() // must work on a paused server too
	})
}

func TestSharedServerMayNotBeKilled(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Fatal("Kill of the shared server did not panic")
		}
	}()
	Shared(t).Kill()
}

func TestServerTellsItsNameAndVersion(t *testing.T) {
	t.Parallel()
	s := Own(t)
	if !strings.HasSuffix(s.Name(), s.Version()+" (process)") || strings.Count(s.Version(), ".") != 2 {
		t.Fatalf("name %q, version %q", s.Name(), s.Version())
	}
	if s.Valkey() != strings.HasPrefix(s.Name(), "valkey ") {
		t.Fatalf("%s: Valkey() = %v", s.Name(), s.Valkey())
	}
	at := At(t, s.URL(), "elsewhere")
	at.Client(t)
	if at.Addr() != s.Addr() || at.Name() != "server (elsewhere)" {
		t.Fatalf("%s is %q", at.Addr(), at.Name())
	}
}

func TestManyOwnServersStartAtOnce(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var addrs []string
	for range 8 {
		wg.Go(func() {
			s, err := fromPath(t.TempDir())
			if err != nil {
				t.Error(err)
				return
			}
			defer s.inst.end()
			mu.Lock()
			defer mu.Unlock()
			addrs = append(addrs, s.Addr())
		})
	}
	wg.Wait()
	slices.Sort(addrs)
	if got := len(slices.Compact(addrs)); got != 8 {
		t.Fatalf("%d different addresses of 8", got)
	}
}

func TestBadServerArgumentsAreReportedWithTheServersOwnWords(t *testing.T) {
	t.Parallel()
	_, err := startOwn(t.TempDir(), []string{"--no-such-option", "1"})
	if err == nil || !strings.Contains(err.Error(), "no-such-option") {
		t.Fatalf("error is %v", err)
	}
}

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

func TestEachRunsOnlyWhatIsAskedFor(t *testing.T) {
	t.Setenv(EnvOnly, "shared")
	n := 0
	Each(t, func(t *testing.T, s *Server) {
		n++
		if s != Shared(t) {
			t.Errorf("ran on %s", s.Name())
		}
	})
	if n != 1 {
		t.Fatalf("ran on %d servers", n)
	}
}

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

func TestMonitorCountsRequestsButNotWhatScriptsDo(t *testing.T) {
	t.Parallel()
	Each(t, func(t *testing.T, s *Server) {
		if s == Shared(t) {
			s = Own(t) // other tests use the shared one at the same time
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
