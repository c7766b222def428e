package tools

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/bench"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/internal/view"
)

// benchReport is the output of bench: the server and client it ran on, and the results.
type benchReport struct {
	Version string         `json:"duestream"`
	URL     string         `json:"url"` // without user and password
	Prefix  string         `json:"prefix"`
	Server  benchServer    `json:"server"`
	Client  benchClient    `json:"client"`
	At      time.Time      `json:"at"`
	Results []bench.Result `json:"results"`
}

type benchServer struct {
	Product     string  `json:"product"` // empty if the server does not report it
	Version     string  `json:"version"`
	AOF         bool    `json:"aof"`
	AppendFsync string  `json:"appendfsync"` // empty if CONFIG is not allowed
	Save        *string `json:"save"`        // null if CONFIG is not allowed
	MaxMemory   int64   `json:"maxmemory_bytes"`
	Replicas    int     `json:"replicas"`
	Nodes       int     `json:"nodes"`
}

type benchClient struct {
	CPUs   int     `json:"cpus"`
	PingMS float64 `json:"ping_ms"` // median
}

// describeServer describes the server. It refuses a server that a bridge would refuse, and a replica, because a replica
// takes no writes.
func describeServer(ctx context.Context, a *cli.App, r *bridge.Redis) (*benchReport, error) {
	info, err := view.CheckServer(ctx, r.Client)
	if err != nil {
		return nil, err
	}
	if info.Role == "slave" {
		return nil, fmt.Errorf("%s is a replica, which takes no writes: give the URL of its master", cli.HostOf(a.RedisURL))
	}
	report := &benchReport{
		Version: a.Version, URL: cli.HostOf(a.RedisURL), Prefix: a.Prefix, At: time.Now().UTC().Truncate(time.Second),
		Server: benchServer{
			Product: info.Product, Version: info.Version, AOF: info.AOF, MaxMemory: info.MaxMemory, Replicas: info.Replicas,
			Nodes: len(r.Client.Nodes()),
		},
		Client: benchClient{CPUs: runtime.GOMAXPROCS(0)},
	}
	c := r.Client
	settings, err := c.Do(ctx, c.B().ConfigGet().Parameter("appendfsync", "save").Build()).AsStrMap()
	if save, ok := settings["save"]; ok && err == nil {
		report.Server.AppendFsync, report.Server.Save = settings["appendfsync"], &save
	}
	pings := make([]time.Duration, 51)
	for i := range pings {
		begin := time.Now()
		if err := c.Do(ctx, c.B().Ping().Build()).Error(); err != nil {
			return nil, err
		}
		pings[i] = time.Since(begin)
	}
	slices.Sort(pings)
	report.Client.PingMS = float64(pings[len(pings)/2].Microseconds()) / 1000
	return report, nil
}

func (r *benchReport) print(w io.Writer) {
	s := r.Server
	name := "a server that does not report its version"
	if s.Version != "" {
		name = s.Product + " " + s.Version
	}
	if s.Nodes > 1 {
		name += fmt.Sprintf(", %d nodes", s.Nodes)
	}
	term.Table(w, [][]string{
		{"server", name + " at " + r.URL}, {"persistence", s.persistence()},
		{"round trip", fmt.Sprintf("PING %s ms", significant(r.Client.PingMS))},
		{"client", fmt.Sprintf("duestream %s, %d CPUs, prefix %s", r.Version, r.Client.CPUs, r.Prefix)},
	})
}

func (s benchServer) persistence() string {
	parts := []string{"append-only file off"}
	if s.AOF {
		parts[0] = "append-only file on"
		if s.AppendFsync != "" {
			parts[0] += ", appendfsync " + s.AppendFsync
		}
	}
	switch {
	case s.Save == nil:
	case *s.Save == "":
		parts = append(parts, "no snapshots")
	default:
		parts = append(parts, "snapshots "+strconv.Quote(*s.Save))
	}
	return strings.Join(append(parts, fmt.Sprintf("%d replicas", s.Replicas)), "; ")
}

// printResults prints the figures of all results as one table, and then their notes.
func printResults(w io.Writer, results []bench.Result) {
	rows := [][]string{{"", "MEDIAN", "FLOOR", "RATIO", "UNIT", "MIN … MAX"}}
	for _, r := range results {
		for _, f := range r.Figures {
			floor, ratio := "-", "-"
			if f.Floor != nil {
				floor = significant(f.Floor.Median)
			}
			if f.Ratio != nil && f.Ratio.Median > 0 {
				ratio = fmt.Sprintf("%.2f", f.Ratio.Median)
			}
			rows = append(rows, []string{f.Name, significant(f.Value.Median), floor, ratio, f.Unit,
				significant(f.Value.Min) + " … " + significant(f.Value.Max)})
		}
	}
	fmt.Fprintln(w)
	term.Table(w, rows)
	for _, r := range results {
		for _, note := range r.Notes {
			fmt.Fprintf(w, "! %s: %s\n", r.Scenario, note)
		}
	}
}

// significant formats a number below 1,000 with three significant digits, but with at most three decimals. It rounds a
// larger number to a whole one, and separates its thousands.
func significant(x float64) string {
	if math.Abs(x) >= 1000 {
		return human.Thousands(int64(math.Round(x)))
	}
	if x == 0 {
		return "0"
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(x))))
	return strconv.FormatFloat(x, 'f', min(max(0, digits), 3), 64)
}

// randomName returns a name that no other run under the same prefix uses.
func randomName() string { return strings.ToLower(rand.Text()[:10]) }
