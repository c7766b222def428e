package bench

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

// clock tells the server's time by the clock of this process.
type clock struct{ offset time.Duration }

// clock compares the clocks, unless the server runs on this machine and has the same. The note says how exact it is.
func (r *rig) clock(ctx context.Context) (clock, string, error) {
	if r.local() {
		return clock{}, "", nil
	}
	best, offset := time.Duration(1<<62), time.Duration(0)
	for range 25 {
		begin := time.Now()
		reply, err := r.c.Do(ctx, r.c.B().Time().Build().SetSlot(r.keys.Due)).AsIntSlice()
		took := time.Since(begin)
		if err != nil || len(reply) != 2 {
			return clock{}, "", fmt.Errorf("bench: compare clocks: %w", lua.Classify("TIME", err))
		}
		if took < best {
			best, offset = took, time.Unix(reply[0], reply[1]*1000).Sub(begin.Add(took/2))
		}
	}
	note := fmt.Sprintf("the server's clock is %s off ours, give or take %s, by TIME: lateness is corrected by that",
		offset.Round(time.Microsecond), (best / 2).Round(time.Microsecond))
	return clock{offset}, note, nil
}

func (c clock) now() time.Time { return time.Now().Add(c.offset) }

// local says whether every server is on this machine.
func (r *rig) local() bool {
	for addr := range r.c.Nodes() {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			host = addr
		}
		ip := net.ParseIP(host)
		if host != "localhost" && !strings.HasPrefix(addr, "/") && (ip == nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}
