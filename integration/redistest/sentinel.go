package redistest

import (
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

const (
	masterName    = "main"
	topologyReady = 30 * time.Second
)

// SentinelOptions change what [Sentinels] starts. The zero value means no passwords.
type SentinelOptions struct {
	Args             []string // of the master and its replicas
	Password         string   // of the master and its replicas
	SentinelPassword string   // of the sentinels
}

// Watched is a master with two replicas, watched by three sentinels. They replace a master that does not answer for a
// second.
type Watched struct {
	t         testing.TB
	Servers   []*Server // the first one was the master at the start
	Sentinels []*Server
	options   SentinelOptions
}

// Sentinels starts a master, two replicas and three sentinels as child processes. It returns when they all know each
// other.
func Sentinels(t testing.TB, options SentinelOptions) *Watched {
	t.Helper()
	w := &Watched{t: t, options: options}
	data := node{args: append([]string{"--repl-diskless-sync-delay", "0", "--repl-timeout", "10"}, options.Args...)}
	if p := options.Password; p != "" {
		data.args = append(data.args, "--requirepass", p, "--masterauth", p)
		data.opt = rueidis.ClientOption{Username: "default", Password: p}
	}
	master := startNode(t, data)
	w.Servers = []*Server{master}
	replica := data
	replica.args = append([]string{"--replicaof", "127.0.0.1 " + port(master)}, data.args...)
	w.Servers = append(w.Servers, startAll(t, replica, 2)...)
	Eventually(t, topologyReady, func() (bool, string) {
		f, err := master.info("replication")
		return err == nil && f["connected_slaves"] == "2" && strings.Contains(f["slave0"], "state=online") &&
			strings.Contains(f["slave1"], "state=online"), fmt.Sprint(f, err)
	})

	sentinel := node{args: []string{"--sentinel"}, config: w.config(master)}
	if p := options.SentinelPassword; p != "" {
		sentinel.opt = rueidis.ClientOption{Username: "default", Password: p}
	}
	w.Sentinels = startAll(t, sentinel, 3)
	w.Settled()
	return w
}

// config returns the configuration of a sentinel. Two sentinels must agree that the master is away.
func (w *Watched) config(master *Server) string {
	lines := []string{
		"sentinel monitor " + masterName + " 127.0.0.1 " + port(master) + " 2",
		"sentinel down-after-milliseconds " + masterName + " 1000",
		"sentinel failover-timeout " + masterName + " 3000",
		"sentinel parallel-syncs " + masterName + " 2",
	}
	if p := w.options.Password; p != "" {
		lines = append(lines, "sentinel auth-pass "+masterName+" "+p)
	}
	if p := w.options.SentinelPassword; p != "" {
		lines = append(lines, fmt.Sprintf("requirepass %q", p), fmt.Sprintf("sentinel sentinel-pass %q", p))
	}
	return strings.Join(lines, "\n") + "\n"
}

// startAll starts count servers in parallel. They end with the test.
func startAll(t testing.TB, n node, count int) []*Server {
	t.Helper()
	servers, errs := make([]*Server, count), make([]error, count)
	var starts sync.WaitGroup
	for i := range servers {
		starts.Go(func() { servers[i], errs[i] = tryNode(t, n) })
	}
	starts.Wait()
	for i, s := range servers {
		if errs[i] == nil {
			s.owned(t)
		}
	}
	for _, err := range errs {
		if err != nil {
			t.Fatalf("redistest: this test needs servers that it may kill: %v", err)
		}
	}
	return servers
}

func port(s *Server) string {
	_, port, _ := strings.Cut(s.Addr(), ":")
	return port
}

// Settled waits until every sentinel sees the same master, both replicas and the other sentinels.
func (w *Watched) Settled() {
	w.t.Helper()
	Eventually(w.t, topologyReady, func() (bool, string) {
		seen := map[string]bool{}
		for _, s := range w.Sentinels {
			f, err := s.info("sentinel")
			if err != nil {
				return false, err.Error()
			}
			line := f["master0"] // name=main,status=ok,address=…,slaves=2,sentinels=3
			if !strings.Contains(line, "status=ok") || !strings.Contains(line, "slaves=2") ||
				!strings.Contains(line, "sentinels=3") {
				return false, line
			}
			seen[line] = true
		}
		return len(seen) == 1, fmt.Sprint(seen)
	})
}

// URL returns the address in the form that bridge.Dial takes, without the sentinels' own password.
func (w *Watched) URL() string {
	u := address("redis", "default", w.options.Password, w.Sentinels[0].Addr()) + "?master_set=" + masterName
	for _, s := range w.Sentinels[1:] {
		u += "&addr=" + url.QueryEscape(s.Addr())
	}
	return u
}

// Server returns a server that stands for the whole topology: its URL is that of the sentinels.
func (w *Watched) Server() *Server {
	w.t.Helper()
	return front(w.t, w.URL(), "sentinel", w.Servers[0])
}

// Master returns the server that most sentinels regard as the master, or nil if there is none.
func (w *Watched) Master() *Server {
	votes := map[*Server]int{}
	for _, sentinel := range w.Sentinels {
		f, err := sentinel.info("sentinel")
		if err != nil {
			continue
		}
		for _, s := range w.Servers {
			if strings.Contains(f["master0"], "address="+s.Addr()+",") {
				if votes[s]++; votes[s] > len(w.Sentinels)/2 {
					return s
				}
			}
		}
	}
	return nil
}

// Promoted waits until another server than instead is the master, according to most sentinels and to itself, and
// returns that server.
func (w *Watched) Promoted(instead *Server) *Server {
	w.t.Helper()
	var master *Server
	Eventually(w.t, topologyReady, func() (bool, string) {
		master = w.Master()
		return master != nil && master != instead && master.Role() == "master", "no server was promoted"
	})
	return master
}

// CutReplication disconnects the replicas from their master for good, and returns when each has noticed. They keep
// their data and may be promoted. Sentinels would repair the replication after some seconds, so kill the master
// before that.
func (w *Watched) CutReplication() {
	w.t.Helper()
	for _, s := range w.Servers {
		if s.Role() == "slave" {
			s.Do(w.t, "REPLICAOF", "127.0.0.1", "1") // no server listens there
		}
	}
}

// Caught waits until both replicas have caught up with the master: they are connected, and have everything that it has.
func (w *Watched) Caught() {
	w.t.Helper()
	Eventually(w.t, topologyReady, func() (bool, string) {
		master := w.Master()
		if master == nil {
			return false, "no master"
		}
		f, err := master.info("replication")
		offset := ",offset=" + f["master_repl_offset"] + ","
		return err == nil && f["connected_slaves"] == "2" && strings.Contains(f["slave0"], offset) &&
				strings.Contains(f["slave1"], offset),
			fmt.Sprint(f, err)
	})
}

// Authorized returns the same as Server, with the sentinels' own password in its URL.
func (w *Watched) Authorized() *Server {
	w.t.Helper()
	return front(w.t, w.URL()+"&sentinel_password="+url.QueryEscape(w.options.SentinelPassword), "sentinel", w.Servers[0])
}
