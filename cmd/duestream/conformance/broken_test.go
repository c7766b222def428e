package conformance

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// breaks lists the cases and watched rules by which a program with one fault fails. It must fail by all of must, and
// may fail by those of may, which the same fault explains.
type breaks struct {
	broken    string
	must, may []string
}

func TestABrokenWorkerFailsByTheRuleThatItBreaks(t *testing.T) {
	t.Parallel()
	fail(t, Worker, []breaks{
		{"acks-first", []string{"acks-after-work", "acks-no-failure"}, []string{"late-acknowledgement", "killed"}},
		{"claims", []string{"no-claims"}, nil},
		{"ignores-for", []string{"skips-others"}, nil},
		{"text-payload", []string{"as-given"}, nil},
		{"group-at-dollar", []string{"group-at-zero"}, nil},
		{"dies-on-nogroup", []string{"group-lost"}, nil},
		{"no-extend", []string{"extend"}, []string{"extend-held", "partitions-extend"}},
		{"hoards", []string{"extend-held"}, []string{"stop", "several-workers", "poison", "ack-after-work", "finishes"}},
		{"one-partition", []string{"partitions", "partitions-grow"}, []string{"partitions-extend"}},
		{"attempt-one", []string{"as-given"}, nil},
		{"no-stop", []string{"stop", "stop-idle"}, nil},
	})
}

func TestALineThatDoesNotParseIsNamedAsTheFault(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	cfg := config(t, Worker, Minimal, string(Worker), "broken-json")
	cfg.URL, cfg.Patience = s.URL(), 10*time.Second
	cfg.Cases = slices.DeleteFunc(cfg.Cases, func(c Case) bool { return c.Name != "deliver" && c.Name != "headers" })
	report, err := Run(t.Context(), cfg)
	if err != nil || len(report.Cases) != 2 {
		t.Fatal(report, err)
	}
	for _, r := range report.Cases {
		if r.State != Failed || r.Broke != "" || !strings.Contains(r.Seen, "printed a line that is not of the contract") ||
			!strings.Contains(r.Seen, "no JSON of a begun message") {
			t.Errorf("%s: %s %s %s", r.Name, r.State, r.Broke, r.Seen)
		}
	}
}

func TestABrokenProducerFailsByTheRuleThatItBreaks(t *testing.T) {
	t.Parallel()
	fail(t, Producer, []breaks{
		{"zadd-first", []string{"writes-whole"}, nil},
		{"seconds", []string{"score", "arrives"}, []string{"replace", "ids", "largest", "ok-when-stored", "request-lost", "reply-lost", "late-reply", "input-ends", "wakes-each", "failed-command", "partitions-grow", "outage"}},
		{"no-wake", []string{"wakes"}, nil},
		{"keeps-headers", []string{"replace"}, []string{"reused"}},
		{"expiry", []string{"keeps-keys"}, nil},
		{"sets-registry", []string{"keeps-registry"}, nil},
	})
}

// fail runs the kit on broken programs, two at a time.
func fail(t *testing.T, kind Kind, all []breaks) {
	t.Helper()
	s := redistest.Own(t)
	reports, errs := make([]*Report, len(all)), make([]error, len(all))
	var running sync.WaitGroup
	free := make(chan struct{}, 2)
	for i, b := range all {
		running.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			cfg := config(t, kind, Good, string(kind), b.broken)
			cfg.URL, cfg.Patience, cfg.Parallel = s.URL(), 10*time.Second, 6
			// These cases take long. Mutations of the examples fail by them.
			cfg.Cases = slices.DeleteFunc(cfg.Cases, func(c Case) bool {
				return slices.ContainsFunc(slices.Concat(comingBackCases, policyCases, outageCases), func(slow Case) bool {
					return slow.Name == c.Name
				})
			})
			reports[i], errs[i] = Run(t.Context(), cfg)
		})
	}
	running.Wait()
	for i, b := range all {
		if errs[i] != nil {
			t.Fatal(b.broken, errs[i])
		}
		var failed []string
		for _, r := range reports[i].Cases {
			if r.State == Failed {
				name := cmp.Or(r.Broke, r.Name)
				failed = append(failed, name)
				t.Logf("%s: %s: %s: %s", b.broken, r.Name, name, r.Seen)
				if !slices.Contains(b.must, name) && !slices.Contains(b.may, name) {
					t.Errorf("%s: fails by %s, which it does not break: %s", b.broken, name, r.Seen)
				}
			}
		}
		for _, name := range b.must {
			if !slices.Contains(failed, name) {
				t.Errorf("%s: does not fail by %s", b.broken, name)
			}
		}
		if reports[i].Reached() {
			t.Errorf("%s: reaches the level", b.broken)
		}
	}
}
