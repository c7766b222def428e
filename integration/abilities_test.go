package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/push"
	"github.com/duestream/duestream/integration/redistest"
)

// abilities has a function for each ability of the table of abilities in docs/operations/users.md. Keys have the form
// "user: ability", or "user + also: ability" for a user with the rights of a row of the table "Also needed".
var abilities = map[string]func(a *asUser){
	"plain-producer: schedule": func(a *asUser) { a.plainSchedule("m"); a.awaitDelivered("m") },
	"plain-producer: cancel":   plainCancel,

	"plain-worker: receive and acknowledge": plainReceive,
	"plain-worker: extend":                  plainExtend,

	"producer: schedule at once": func(a *asUser) { a.send("m"); a.awaitDelivered("m") },
	"producer: schedule for later": func(a *asUser) {
		a.send("m", bridge.In(20*time.Millisecond))
		a.awaitDelivered("m")
	},
	"producer: schedule a batch":             sendBatch,
	"producer: schedule with a dedup window": sendOnce,
	"producer: schedule with a key":          func(a *asUser) { sendKeyed(a, a.client()) },
	"producer: replace":                      replaceScheduled,
	"producer: cancel":                       func(a *asUser) { a.sendAndCancel("m") },
	"producer: cancel with a key":            cancelKeyed,
	"producer: cancel a retry":               cancelRetry,
	"producer: reschedule":                   moveScheduled,
	"producer: reschedule a retry":           moveRetry,
	"producer + a `Client` that writes, runs or lists recurrences: write, list, pause, run and remove " +
		"a recurrence": recurInGo,
	"producer + a `Client` that writes, runs or lists recurrences: `duestream recur`":              recurByCommand,
	"producer + a `Client` that cancels what is ready or running: cancel what is ready or running": cancelRunning,

	"worker: acknowledge":              func(a *asUser) { a.work(nil); a.feed("m"); a.awaitEmpty() },
	"worker: acknowledge many at once": func(a *asUser) { a.work(nil); a.feed(manyNames(40)...); a.awaitEmpty() },
	"worker: retry": func(a *asUser) {
		fail := failOnce()
		a.work(fail(errors.New("once more")))
		a.feed("m")
		a.awaitEmpty()
	},
	"worker: dead-letter": func(a *asUser) {
		a.work(func(*bridge.Message) error { return bridge.DeadLetter(errors.New("no good")) })
		a.feed("m")
		a.eventually(func() (bool, string) { return a.count("XLEN", a.keys("").Dead) == 1, "no dead letter" })
	},
	"worker: snooze": func(a *asUser) {
		fail := failOnce()
		a.work(fail(bridge.Snooze(10 * time.Millisecond)))
		a.feed("m")
		a.awaitEmpty()
	},
	"worker: release": func(a *asUser) {
		fail := failOnce()
		a.work(fail(bridge.Release(errors.New("not now"))))
		a.feed("m")
		a.awaitEmpty()
	},
	"worker: store progress": func(a *asUser) {
		fail := failOnce()
		failing := fail(errors.New("once more"))
		a.work(func(m *bridge.Message) error {
			if err := m.SaveProgress(context.Background(), []byte("page 7")); err != nil {
				return bridge.Snooze(0) // a denied command would make this go round until the end of the test
			}
			return failing(m)
		})
		a.feed("m")
		a.awaitEmpty()
	},
	"worker: store a result": func(a *asUser) {
		a.work(func(m *bridge.Message) error { return m.SetResult([]byte("paid")) })
		_, err := a.clientOf(a.admin).Schedule(a.t.Context(), a.queue, nil,
			bridge.WithID("m"), bridge.KeepResult(time.Minute))
		a.must(err)
		a.awaitEmpty()
	},
	"worker: extend":                  extendLong,
	"worker: keep the order of a key": keepOrder,
	"worker: create a lost group":     healGroup,
	"worker: share a rate":            shareRate,
	"worker: record an effect":        recordEffect,

	"worker + `duestream push run`: post":           func(a *asUser) { post(a, push.Target{}) },
	"worker + `duestream push run`: post at a rate": postAtRate,

	"bridge: drain":                                bridgeDrains,
	"bridge: plan recurrences":                     bridgePlans,
	"bridge: reclaim":                              bridgeReclaims,
	"bridge: pass a key on":                        bridgePassesOn,
	"bridge: trim":                                 bridgeTrims,
	"bridge: serve a queue that nobody registered": bridgeFinds,
	"bridge + `duestream serve --http`: publish and receive over HTTP": publishAndReceive,
	"bridge + `duestream serve --http`: post messages to a URL":        postAtRate,

	"gateway: publish":                          func(a *asUser) { overHTTP(a, publishHTTP) },
	"gateway: cancel and reschedule":            func(a *asUser) { overHTTP(a, changeHTTP) },
	"gateway: receive and settle":               publishAndReceive,
	"gateway: look":                             func(a *asUser) { overHTTP(a, publishHTTP, lookHTTP) },
	"gateway: operate on dead letters":          func(a *asUser) { overHTTP(a, lettersHTTP) },
	"gateway: operate on recurrences":           func(a *asUser) { overHTTP(a, recurrencesHTTP) },
	"gateway: search, and change what is found": func(a *asUser) { overHTTP(a, searchHTTP) },
	"gateway: change settings":                  func(a *asUser) { overHTTP(a, settingsHTTP) },
	"bridge + `duestream serve --admin`: look at everything in the dashboard":            dashboardLooks,
	"bridge + `duestream serve --admin`: change queues and messages in the dashboard":    dashboardChanges,
	"gateway + `duestream gateway --admin`: look at everything in the dashboard":         dashboardLooks,
	"gateway + `duestream gateway --admin`: change queues and messages in the dashboard": dashboardChanges,
	"gateway + `duestream gateway --push`: post messages to a URL":                       postAtRate,

	"operator: look at everything":      operatorLooks,
	"operator: change settings":         operatorSets,
	"operator: operate on dead letters": operatorLetters,
	"operator: operate on recurrences":  recurByCommand,
	"operator: export and import":       operatorMoves,
	"operator: change many at once":     operatorBulk,
	"operator: load functions":          operatorLoads,

	"operator: search, and change what is found": operatorSearches,

	"operator: delete a queue":    operatorDeletes,
	"operator: roll a queue back": func(a *asUser) { a.command("queue", "rollback", a.queue, "--force") },

	"doctor: examine": examineAs,
	"doctor + `duestream doctor`, to look at the library of functions: examine": examineAs,
}

// provenElsewhere maps the first words of the purpose of a row of "Also needed" to the test that proves that row.
var provenElsewhere = map[string]string{
	"`duestream doctor`, to see":                         "doctor: TestDoctorSaysWhatItCouldNotLookAt",
	"`duestream serve --metrics`, for `duestream_memory": "metrics: TestScrapeWithFewRights",
	"`duestream serve --metrics`, for `duestream_retry":  "metrics: TestScrapeWithFewRights",
	"lmstfy's `destroy`":                                 "lmstfy: TestTheDocumentedUserIsEnough",
	"a `Client`, or a gateway, with `Replicated(n)`":     "TestDurabilityNeedsOnlyDocumentedRights",
	"a `Client`, or a gateway, with `Fsynced`":           "TestDurabilityNeedsOnlyDocumentedRights",
	"every Go program on a cluster":                      "TestUsersNeedWhatIsDocumentedForTheTopology",
	"every Go program behind Sentinel":                   "TestUsersNeedWhatIsDocumentedForTheTopology",
	"the producer in shell":                              "languages: TestExamplesWorkAsPlainUsers",
	"a client that calls the [functions]":                "TestUsersOfFunctions",
	"`duestream functions load`":                         "TestUsersOfFunctions",
}

var (
	abilityRow = regexp.MustCompile(`(?m)^\| ([a-z-]+) \|(.*)\| ([^|]+) \|$`)
	alsoRow    = regexp.MustCompile("(?m)^\\| `[^`]+` \\| (.+) \\|$")
)

// abilitiesOf is a row of the table of abilities.
type abilitiesOf struct {
	user, also string
	can        []string
}

// name returns the key of an ability of the row in abilities.
func (r abilitiesOf) name(can string) string {
	if r.also == "" {
		return r.user + ": " + can
	}
	return r.user + " + " + r.also + ": " + can
}

// Each documented user has every ability that the table of abilities gives it. The table has every user, and every row
// of the table "Also needed". Regression: the user of `duestream push run` could not post for a target with a rate, and
// no test noticed it, because none used a rate.
func TestUsersHaveEveryAbilityOfTheTable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/operations/users.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n| User | Also | Abilities |\n")
	table, rest, _ := strings.Cut(section, "\n\n")
	_, also, _ := strings.Cut(rest, "| Also needed | For |\n")
	also, _, _ = strings.Cut(also, "\n\n")
	var rows []abilitiesOf
	named, users := map[string]bool{}, map[string]bool{}
	for _, m := range abilityRow.FindAllStringSubmatch(table, -1) {
		one := abilitiesOf{m[1], strings.TrimSpace(m[2]), strings.Split(m[3], "; ")}
		rows, users[one.user] = append(rows, one), true
		for _, can := range one.can {
			name := one.name(can)
			if abilities[name] == nil {
				t.Errorf("the table promises %q, and no function of this test does it", name)
			}
			named[name] = true
		}
	}
	for name := range abilities {
		if !named[name] {
			t.Errorf("%q is tested, and the table does not promise it", name)
		}
	}
	for user := range documentedUsers(t) {
		if !users[user] {
			t.Errorf("the table has no row for user %s", user)
		}
	}
	for _, m := range alsoRow.FindAllStringSubmatch(also, -1) {
		proven := slices.ContainsFunc(rows, func(r abilitiesOf) bool {
			return r.also != "" && strings.HasPrefix(m[1], r.also)
		})
		for begin := range provenElsewhere {
			proven = proven || strings.HasPrefix(m[1], begin)
		}
		if !proven {
			t.Errorf("no row of abilities has what is needed for %q", m[1])
		}
	}
	if t.Failed() {
		return
	}
	binary := build(t)
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		t.Parallel()
		g := newGuests(t, server, false)
		admin := g.runSharedBridge(t)
		for i, r := range rows {
			for j, can := range r.can {
				t.Run(strings.ReplaceAll(r.name(can), "/", "-"), func(t *testing.T) {
					a := g.newUser(t, r.user, r.also, fmt.Sprintf("%s%s-%d-%d", r.user, g.suffix, i, j), admin)
					a.binary = binary
					abilities[r.name(can)](a)
					for _, stop := range a.workers {
						stop()
					}
					if len(a.workers) > 0 && r.user == "worker" {
						a.noConsumerLeft()
					}
					for _, what := range g.denials(t, a.login) {
						if !slices.Contains(a.optional, what) {
							t.Errorf("%s was denied %s", r.user, what)
						}
					}
				})
			}
		}
	})
}
