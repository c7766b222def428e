package campaign

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

// inFlight bounds how many counts of a killed process may be in its ledger but not in its last scrape, or the other
// way round: at most one for each delivery in progress. Counts after the last scrape are known from the ledger.
const inFlight = 400

// counted holds one counter: its value by all ledgers and by all scrapes, and the difference that kills explain.
type counted struct{ ledger, scraped, explained float64 }

// auditMetrics compares the counters of all processes, including killed ones, with their ledgers, and the drained
// messages of bridges with the stream.
func (c *controller) auditMetrics(faults []Fault) error {
	all := map[string]*counted{}
	paths, err := filepath.Glob(filepath.Join(c.cfg.Dir, "*.ledger"))
	if err != nil {
		return err
	}
	killed, sums, deaths := 0, map[string]float64{}, map[string]time.Time{} // deaths: last scrape of the killed
	main := map[string]bool{}                                               // entries of the main queue with a start
	for _, path := range paths {
		lines, role, err := c.readLedger(path, main)
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(filepath.Base(path), ".ledger")
		if role == rolePlain || role == roleOperator || name == "controller" || name == recurrencesBook { // no metrics
			continue
		}
		got, inOrder, err := ended(c.cfg.Dir, name)
		if err != nil {
			return err
		}
		if !inOrder {
			killed++
			got = c.scraper.last[name]
			deaths[name] = got.from
		}
		for _, counter := range []string{"drained_total@" + queueMain, "enqueued_ready_total@" + queueMain, "reclaimed_total",
			"heartbeats_total", "errors_total", "reconnects_total"} {
			sums[counter] += got.values[counter]
		}
		c.hold(all, name, lines, got, inOrder)
	}
	c.t.Logf("metrics: %d scrapes, %d processes that ended in order, %d that were killed; reclaimed %v, heartbeats %v, "+
		"reconnects %v, errors %v", c.scraper.count, len(paths)-killed, killed, sums["reclaimed_total"], sums["heartbeats_total"],
		sums["reconnects_total"], sums["errors_total"])
	c.t.Logf("%-32s %10s %10s %10s %12s", "counter", "ledgers", "metrics", "missing", "explained by kills")
	for _, name := range sortedKeys(all) {
		one := all[name]
		c.t.Logf("%-32s %10.0f %10.0f %10.0f %12.0f", name, one.ledger, one.scraped, one.ledger-one.scraped, one.explained)
	}
	for _, what := range c.rest {
		c.t.Error("metrics: at rest: " + what)
	}
	return c.holdDrained(sums, main, deaths, faults)
}

// ledgerLine is a line that a counter counts.
type ledgerLine struct {
	counter string
	at      time.Time
}

func (c *controller) readLedger(path string, main map[string]bool) (lines []ledgerLine, role string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, "", err
	}
	defer file.Close()
	var by *writer
	for text := bufio.NewScanner(file); text.Scan(); {
		if by == nil {
			var ok bool
			if by, ok = parseWriter(text.Bytes()); !ok {
				return nil, "", nil // killed before it wrote its first line
			}
			continue
		}
		r, ok := parse(text.Bytes(), by)
		if !ok {
			continue
		}
		if plan, is := planOf(r.id); r.verb == verbStart && is && plan.queue == queueMain {
			main[r.entry] = true
		}
		if counter := counterOf(r); counter != "" {
			lines = append(lines, ledgerLine{counter, time.UnixMicro(r.at)})
		}
	}
	if by == nil {
		return nil, "", nil
	}
	return lines, by.role, nil
}

// hold compares the counters of one process with its ledger.
func (c *controller) hold(all map[string]*counted, name string, lines []ledgerLine, got scrape, inOrder bool) {
	own := map[string]*counted{}
	for _, l := range lines {
		if own[l.counter] == nil {
			own[l.counter] = &counted{}
		}
		own[l.counter].ledger++
		if !inOrder && !l.at.Before(got.from) {
			own[l.counter].explained++
		}
	}
	for counter, one := range own {
		one.scraped = got.values[counter]
		slack := 0.0
		if !inOrder {
			slack = inFlight
		}
		// A worker that stops releases entries that no handler saw, so they have no line.
		surplus := slack
		if counter == "released_total" {
			surplus += inFlight
		}
		if missing := one.ledger - one.scraped; missing > one.explained+slack || missing < -surplus {
			c.t.Errorf("metrics: %s (in order: %t): %s is %v, its ledger says %v, a kill explains %v", name, inOrder, counter,
				one.scraped, one.ledger, one.explained)
		}
		if all[counter] == nil {
			all[counter] = &counted{}
		}
		all[counter].ledger += one.ledger
		all[counter].scraped += one.scraped
		all[counter].explained += one.explained
	}
}

// gaugesAtRest compares the gauges of live bridges with the content of Redis.
func (c *controller) gaugesAtRest() {
	c.scraper.all(c.family)
	sums := map[string]float64{}
	for _, s := range c.family.of(roleBridge) {
		for name, v := range c.scraper.last[s.current()].values {
			sums[name] += v
		}
	}
	want := map[string]float64{"up": float64(len(c.family.of(roleBridge))), "owned_partitions": float64(len(c.places))}
	for _, queue := range []string{queueMain, queueSide} {
		for _, name := range []string{"scheduled", "overdue", "ready", "entries", "pending", "lag", "retrying"} {
			want[name+"@"+queue] = 0
		}
	}
	for _, place := range c.places {
		n, err := c.number("XLEN", c.keys[place].Dead)
		if err != nil {
			c.rest = append(c.rest, err.Error())
		}
		queue, _, _ := lua.SplitPartition(place)
		want["dead@"+queue] += float64(n)
	}
	for _, name := range sortedKeys(want) {
		if got, there := sums[name]; !there && want[name] > 0 || got != want[name] {
			c.rest = append(c.rest, fmt.Sprintf("%s is %v, want %v", name, got, want[name]))
		}
	}
	c.t.Logf("metrics: %d gauges at rest; dead letters %v and %v", len(want), want["dead@"+queueMain], want["dead@"+queueSide])
}

// holdDrained compares the number of messages that became ready, by the counters of bridges and producers, with the
// number of entries ever added to the stream. Entries may be missing if they were added after the last scrape of a
// killed process, or while a fault took away replies.
func (c *controller) holdDrained(sums map[string]float64, main map[string]bool, deaths map[string]time.Time,
	faults []Fault) error {
	added := -float64(c.cfg.Hold) // without those of the controller, which has no metrics
	for _, place := range c.places[:len(c.places)-1] {
		reply, err := c.do("XINFO", "STREAM", c.keys[place].Stream)
		if err != nil {
			return err
		}
		fields, err := reply.AsMap()
		if err != nil {
			return err
		}
		m := fields["entries-added"]
		n, err := m.AsInt64()
		if err != nil {
			return err
		}
		added += float64(n)
	}
	explained := 0.0
	for entry := range main {
		at := lua.EntryTime(entry)
		if slices.ContainsFunc(faults, func(f Fault) bool {
			if !hitsProducersOrBridges(f) {
				return false
			}
			from := f.From
			for _, name := range f.Hits {
				if last, killed := deaths[name]; killed && last.Before(from) {
					from = last
				}
			}
			return at.After(from.Add(-100*time.Millisecond)) && at.Before(f.Until.Add(100*time.Millisecond))
		}) {
			explained++
		}
	}
	// If a producer repeated a call, it does not know whether the message went straight into the stream.
	ready := sums["drained_total@"+queueMain] + sums["enqueued_ready_total@"+queueMain]
	c.t.Logf("%-32s %10.0f %10.0f %10.0f %12.0f", "drained + enqueued_ready", added, ready, added-ready, explained)
	if missing := added - ready; missing < 0 || missing > explained {
		c.t.Errorf("metrics: %v became ready by the counters, %v entries were added, faults explain %v", ready, added, explained)
	}
	return nil
}

// hitsProducersOrBridges reports whether a fault can take away the reply of a drain or an enqueue.
func hitsProducersOrBridges(f Fault) bool {
	return len(f.Hits) == 0 || slices.ContainsFunc(f.Hits, func(name string) bool {
		return strings.HasPrefix(name, roleBridge) || strings.HasPrefix(name, roleProducer)
	})
}
