package conformance

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// command is a command that a server executed, as MONITOR shows it.
type command struct {
	from      string // address of the client, or "lua" in a script or function
	name, key string // name and first argument, which is mostly a key
}

// monitored returns the commands that a server executes while do runs. The case counts as not tried on a cluster, and
// on a server where this user may not run MONITOR.
func (t *trial) monitored(do func()) (all []command) {
	conn, lines := t.monitor()
	defer conn.Close()
	do()
	mark := "end-" + strconv.FormatUint(rand.Uint64(), 36)
	couldNot("ECHO", t.redis.Client.Do(t.ctx, t.redis.Client.B().Echo().Message(mark).Build()).Error())
	_ = conn.SetReadDeadline(time.Now().Add(t.cfg.patience()))
	for {
		line, err := lines.ReadString('\n')
		couldNot("MONITOR", err)
		c, ok := parseCommand(strings.TrimRight(line, "\r\n"))
		switch {
		case !ok:
		case c.name == "ECHO" && c.key == mark:
			return all
		default:
			all = append(all, c)
		}
	}
}

func (t *trial) monitor() (conn net.Conn, lines *bufio.Reader) {
	if t.redis.Client.Mode() == rueidis.ClientModeCluster {
		notTriedf("a cluster does not tell in which order its servers execute commands")
	}
	conn, err := dialServer(t.ctx, t.opt)
	couldNot("MONITOR", err)
	open := false
	defer func() {
		if !open {
			conn.Close()
		}
	}()
	lines = bufio.NewReader(conn)
	for _, args := range opening(t.opt) {
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		_, err := conn.Write(encode(args))
		couldNot(args[0], err)
		reply, err := lines.ReadString('\n')
		couldNot(args[0], err)
		if strings.HasPrefix(reply, "-") {
			notTriedf("the server does not allow %s: %s", args[0], strings.TrimSpace(reply[1:]))
		}
	}
	open = true
	_ = conn.SetDeadline(time.Time{})
	return conn, lines
}

func dialServer(ctx context.Context, opt rueidis.ClientOption) (net.Conn, error) {
	if len(opt.InitAddress) != 1 || opt.Sentinel.MasterSet != "" {
		return nil, &notTried{"the URL names no single server to watch"}
	}
	if opt.DialCtxFn != nil {
		return opt.DialCtxFn(ctx, opt.InitAddress[0], &opt.Dialer, opt.TLSConfig)
	}
	if opt.TLSConfig != nil {
		return (&tls.Dialer{NetDialer: &opt.Dialer, Config: opt.TLSConfig}).DialContext(ctx, "tcp", opt.InitAddress[0])
	}
	return opt.Dialer.DialContext(ctx, "tcp", opt.InitAddress[0])
}

func opening(opt rueidis.ClientOption) (commands [][]string) {
	switch {
	case opt.Username != "":
		commands = append(commands, []string{"AUTH", opt.Username, opt.Password})
	case opt.Password != "":
		commands = append(commands, []string{"AUTH", opt.Password})
	}
	return append(commands, []string{"MONITOR"})
}

func encode(args []string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, a := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b
}

// parseCommand parses a line of MONITOR: +1795283707.604348 [0 127.0.0.1:50368] "HSET" "a" "b\x1f" Some servers do
// not escape quotes in values. So it parses only up to the first argument; our keys hold no quotes.
func parseCommand(line string) (c command, ok bool) {
	_, line, ok = strings.Cut(line, " [")
	if !ok {
		return c, false
	}
	from, line, ok := strings.Cut(line, "] \"")
	if !ok {
		return c, false
	}
	_, c.from, _ = strings.Cut(from, " ")
	name, line, ok := strings.Cut(line, `"`)
	c.name = strings.ToUpper(name)
	if rest, more := strings.CutPrefix(line, ` "`); more {
		c.key, _, ok = strings.Cut(rest, `"`)
	}
	return c, ok
}
