package campaign

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/lua"
)

// epoch is the begin of the scripts in these tests, in Unix ms.
const epoch = 1_800_000_000_000

// castRoles has the role and the group ("-" = none) of each process that a script may name.
var castRoles = map[string][2]string{
	"P": {roleProducer, "-"}, "A1": {roleWorker, "a"}, "A2": {roleWorker, "a"},
	"B1": {roleWorker, "b"}, "B2": {rolePlain, "b"}, "H": {roleHolder, "a"},
	"G1.0": {roleGateway, "b"}, "G2.0": {roleGateway, "b"}, "G2.1": {roleGateway, "b"}, "W": {roleHTTPWorker, "b"},
	"S": {roleHTTPProducer, "-"},
}

// play writes the ledgers of a script and audits them. A line of a script is "<ms> <process> <verb> <arguments>", with
// the verbs of a ledger (see ledger.go). In arguments, @n is the time n ms after the begin, and #n is the entry added
// at that time. Lines are about the message id, until a line "id <id>" names another one. For example:
//
//	0 P try 0               the producer P sends the message, with a delay of 0 ms
//	1 P taken @0            P hears that the message was accepted, and is due at the begin
//	2 A1 s #1 1 - @0        the worker A1 starts a handler of entry #1: attempt 1, for all groups, due at the begin
//	3 A1 e #1 ok            the handler has succeeded
//	4 A1 x #1 acknowledged  A1 hears that the entry is acknowledged
func play(t *testing.T, id, script string, faults []Fault, state State) Tally {
	t.Helper()
	dir := t.TempDir()
	files := map[string]*strings.Builder{}
	for name, is := range castRoles {
		files[name] = &strings.Builder{}
		fmt.Fprintf(files[name], "%d is %s %s %s\n", epoch*1000, name, is[0], is[1])
	}
	for _, text := range strings.Split(script, "\n") {
		cells := strings.Fields(text)
		if len(cells) == 0 {
			continue
		}
		if cells[0] == "id" {
			id = cells[1]
			continue
		}
		for i := 3; i < len(cells); i++ {
			n, err := strconv.Atoi(cells[i][1:])
			switch {
			case err != nil:
			case cells[i][0] == '@':
				cells[i] = strconv.Itoa(epoch + n)
			case cells[i][0] == '#':
				cells[i] = strconv.Itoa(epoch+n) + "-0"
			}
		}
		ms, err := strconv.ParseFloat(cells[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(files[cells[1]], "%d %s\n", epoch*1000+int(ms*1000),
			strings.Join(append([]string{cells[2], id}, cells[3:]...), " "))
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name+".ledger"), []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tally, err := Audit(dir, 2*time.Second, faults, state)
	if err != nil {
		t.Fatal(err)
	}
	return tally
}

func faultAt(kind string, from, until int, hits ...string) Fault {
	return Fault{Kind: kind, From: time.UnixMilli(epoch + int64(from)), Until: time.UnixMilli(epoch + int64(until)), Hits: hits}
}

func letterAt(ms int, id, group, reason string, attempt int) Letter {
	return Letter{Queue: queueMain, ID: id, Group: group, Reason: reason, Attempt: attempt, At: epoch + int64(ms)}
}

// Parts of scripts. In taken the message is due at once. doneB is the part of group b, for tests about group a.
const (
	taken = "0 P try 0\n 1 P taken @0\n"
	doneA = "2 A1 s #1 1 - @0\n 2.1 A1 e #1 ok\n 3 A1 x #1 acknowledged\n"
	doneB = "2 B1 s #1 1 - @0\n 2.1 B1 e #1 ok\n 3 B1 x #1 acknowledged\n"

	okID, failID, deadID, buryID, sideID = "p-1-mo", "p-1-mf1", "p-1-md2", "p-1-mx", "p-1-so"
)

// Every planted violation is found, in its column and in no other, with the full history of the message. An auditor
// that misses one of them would let a lost message pass.
func TestAuditorFindsWhatIsPlanted(t *testing.T) {
	t.Parallel()
	kill := faultAt(faultKillWorker, 5, 5, "A1")
	for _, c := range []struct {
		name, id, script string
		faults           []Fault
		state            State
		want             string // short names of the columns, one for each finding
	}{
		{"nothing is wrong", okID, taken + doneA + doneB, nil, State{}, ""},
		{"lost in one group", okID, taken + doneB, nil, State{}, "lost"},
		{"lost with its worker", okID, taken + doneB + "2 A1 s #1 1 - @0", []Fault{kill}, State{}, "lost"},
		{"lost by who took it out, and nobody was told that it is taken", okID, "0 P try 0\n" + doneB +
			"2 A1 s #1 1 - @0\n 3 A1 e #1 ok\n 4 A1 x #1 lost",
			[]Fault{kill}, State{}, "lost"},
		{"accepted, and lost by who took it out at a failover", okID, taken + doneB +
			"2 A1 s #1 1 - @0\n 3 A1 e #1 ok\n 4 A1 x #1 lost",
			[]Fault{faultAt(faultFreezeMaster, 1, 9)}, State{}, "lost"},
		{"taken away from who held it, and lost", okID, taken + doneB + "2 A1 s #1 1 - @0\n 3000 A2 s #2990 2 a @2990\n" +
			"3001 A2 e #2990 ok\n 3002 A2 x #2990 lost\n 9000 A1 e #1 ok\n 9001 A1 x #1 lost",
			[]Fault{faultAt(faultFreezeMaster, 2500, 3050)}, State{}, "lost"},
		{"early by the worker's clock", okID, "0 P try 100\n 1 P taken @100\n 99 A1 s #100 1 - @100\n 100 A1 e #100 ok\n" +
			"101 A1 x #100 acknowledged\n" +
			"102 B1 s #100 1 - @100\n 103 B1 e #100 ok\n 104 B1 x #100 acknowledged", nil, State{}, "early"},
		{"early by the entry ID", okID, "0 P try 100\n 1 P taken @100\n 102 A1 s #99 1 - @100\n 103 A1 e #99 ok\n" +
			"104 A1 x #99 acknowledged\n" +
			"102 B1 s #100 1 - @100\n 103 B1 e #100 ok\n 104 B1 x #100 acknowledged", nil, State{}, "early"},
		{"before the time it was moved to", "p-1-mr", "0 P try 10\n 1 P taken @10\n 2 P move asked 0\n 3 P move ok @500\n" +
			"12 A1 s #11 1 - @10\n 13 A1 e #11 ok\n 14 A1 x #11 acknowledged\n 502 B1 s #501 1 - @500\n 503 B1 e #501 ok\n" +
			"504 B1 x #501 acknowledged",
			nil, State{}, "early"},
		{"delivered after a cancel", "p-1-mc", "0 P try 10\n 1 P taken @10\n 2 P cancel asked\n 3 P cancel ok\n" +
			"12 A1 s #11 1 - @10\n 13 A1 e #11 ok\n 14 A1 x #11 acknowledged", nil, State{}, "cancelled"},
		{"two acknowledgements won", okID, taken + doneA + doneB + "2.5 A2 s #1 1 - @0\n 2.6 A2 e #1 ok\n 4 A2 x #1 acknowledged",
			[]Fault{kill}, State{}, "owners owners"},
		{"two acknowledgements won long after a failover", okID, taken +
			"3000 A1 s #1 1 - @0\n 3001 A1 e #1 ok\n 3002 A1 x #1 acknowledged\n" + doneB +
			"6000 A2 s #1 1 - @0\n 6001 A2 e #1 ok\n 6002 A2 x #1 acknowledged", []Fault{faultAt(faultKillMaster, 100, 200)},
			State{}, "owners owners duplicates"},
		{"dead-lettered twice", "p-1-me1", taken + "2 A1 s #1 1 - @0\n 3000 A1 e #1 fail\n 3001 A1 x #1 dead",
			[]Fault{faultAt(faultStopWorker, 5, 2990, "A1"), faultAt(faultKillPlain, 1, 2, "B2")},
			State{Letters: []Letter{letterAt(2400, "p-1-me1", "a", "visibility_timeout", 1),
				letterAt(3000, "p-1-me1", "a", "max_attempts", 1),
				letterAt(2400, "p-1-me1", "b", "visibility_timeout", 1)}}, "owners"},
		{"acknowledged though it must die", deadID, taken + doneA, nil,
			State{Letters: []Letter{letterAt(9, deadID, "b", "max_attempts", 2)}}, "wrong burnt burnt"},
		{"dead though it must not", okID, taken + doneB + "2 A1 s #1 1 - @0\n 3 A1 e #1 ok", []Fault{kill},
			State{Letters: []Letter{letterAt(9, okID, "a", "body_lost", 1)}}, "wrong"},
		{"dead for a wrong reason", buryID, taken, []Fault{faultAt(faultStopWorker, 1, 2)},
			State{Letters: []Letter{letterAt(9, buryID, "a", "max_attempts", 1), letterAt(9, buryID, "b", "dead_letter", 1)}},
			"wrong"},
		{"dead after too few attempts", deadID, taken, []Fault{faultAt(faultStall, 1, 2)},
			State{Letters: []Letter{letterAt(9, deadID, "a", "max_attempts", 1), letterAt(9, deadID, "b", "max_attempts", 2)}},
			"wrong"},
		{"delivered again for no reason", okID, taken + doneA + "2 B1 s #1 1 - @0\n 3 B1 e #1 ok\n 9000 B1 s #8999 1 b @8999\n" +
			"9001 B1 e #8999 ok\n 9002 B1 x #8999 acknowledged",
			[]Fault{faultAt(faultKillWorker, 100, 100, "A1")}, State{}, "duplicates"},
		{"an attempt burnt by an outage", okID, taken + doneB + "2 A1 s #1 1 - @0\n 3 A1 e #1 ok\n 3000 A2 s #2900 2 a @2900\n" +
			"3001 A2 e #2900 ok\n 3002 A2 x #2900 acknowledged",
			[]Fault{faultAt(faultStopServer, 2, 2800)}, State{}, "burnt"},
		{"an attempt burnt by another worker's death", okID, taken + doneB + "2 A1 s #1 1 - @0\n 3 A1 e #1 ok\n" +
			"3000 A2 s #2900 2 a @2900\n 3001 A2 e #2900 ok\n 3002 A2 x #2900 acknowledged",
			[]Fault{faultAt(faultKillWorker, 10, 10, "A2")}, State{}, "burnt duplicates"},
		{"a retry in a group that it is not for", failID, taken + doneA + doneB + "2.5 B1 s #2 2 a @2\n 2.6 B1 e #2 ok\n" +
			"3 B1 x #2 acknowledged", nil, State{}, "foreign owners duplicates burnt"},
		{"perhaps taken again behind its window", "p-1-mw", taken + doneA + doneB + "5 P try 0\n 9 P maybe\n" +
			"20002 A1 s #20001 1 - @20000\n 20003 A1 e #20001 ok\n 20004 A1 x #20001 acknowledged\n" +
			"20002 B1 s #20001 1 - @20000\n 20003 B1 e #20001 ok\n 20004 B1 x #20001 acknowledged\n", nil, State{}, ""},
		{"perhaps taken again inside its window", "p-1-mw", taken + doneA + doneB + "5 P try 0\n 9 P maybe\n" +
			"9002 A1 s #9001 1 - @9000\n 9003 A1 e #9001 ok\n 9004 A1 x #9001 acknowledged\n" +
			"9002 B1 s #9001 1 - @9000\n 9003 B1 e #9001 ok\n 9004 B1 x #9001 acknowledged\n", nil, State{},
			"owners owners duplicates duplicates"},
		{"taken twice", "p-1-mw", taken + "5 P try 0\n 6 P taken @5\n" + doneA + doneB, nil, State{}, "twice"},
		{"refused and delivered", okID, "0 P try 0\n 1 P refused full\n" + doneA + doneB, nil, State{}, "wrong wrong"},
		{"never sent by anybody", okID, doneA, nil, State{}, "wrong"},
		{"gone without a reason", okID, taken + doneB + "2 A1 s #1 1 - @0\n 3 A1 e #1 ok\n 4 A1 x #1 unknown", nil, State{},
			"wrong"},
		{"stuck and left", okID, taken + doneA + doneB, nil, State{Stuck: []string{"x"}, Left: []string{"y", "z"}},
			"stuck left left"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tally := play(t, c.id, c.script, c.faults, c.state)
			short := map[string]string{
				"lost": columnLost, "early": columnEarly, "cancelled": columnCancelled, "owners": columnOwners,
				"wrong": columnWrong, "foreign": columnForeign,
				"duplicates": columnUnexplained, "burnt": columnBurnt, "twice": columnTwice, "stuck": columnStuck,
				"left": columnLeft,
			}
			want := map[string]int{}
			for _, word := range strings.Fields(c.want) {
				want[short[word]]++
			}
			if !maps.Equal(tally.Zero, want) {
				t.Errorf("found %v, planted %v", tally.Zero, want)
			}
			for _, f := range tally.Findings {
				t.Logf("%s: %s", f.Column, f.Problem)
				if f.ID != "" && len(f.History) != strings.Count(strings.TrimSpace(c.script), "\n")+1 {
					t.Errorf("%d lines of history: %q", len(f.History), f.History)
				}
			}
		})
	}
}

// The effects of faults on deliveries are explained by the faults, and counted. They are no violations, because
// at-least-once delivery allows them.
func TestAuditorExplainsWhatFaultsDo(t *testing.T) {
	t.Parallel()
	again := "2 A1 s #1 1 - @0\n 3 A1 e #1 ok\n 3000 A2 s #2900 2 a @2900\n 3001 A2 e #2900 ok\n 3002 A2 x #2900 acknowledged\n"
	for _, c := range []struct {
		name, id, script  string
		faults            []Fault
		letters           []Letter
		again, burnt      int // explained duplicates and used up attempts
		retries, operator int // retries, and losses by an operator's command
	}{
		{name: "killed before it acknowledged", id: okID, script: taken + doneB + again,
			faults: []Fault{faultAt(faultKillWorker, 4, 4, "A1")}, again: 1, burnt: 1},
		{name: "an outage releases without an attempt", id: okID, script: taken + doneB +
			"2 A1 s #1 1 - @0\n 2500 A1 e #1 cut\n" +
			"3000 A1 x #1 released\n" +
			"3100 A2 s #3050 1 a @3050\n 3101 A2 e #3050 ok\n 3102 A2 x #3050 acknowledged",
			faults: []Fault{faultAt(faultStopServer, 3, 2900)}, again: 1},
		{name: "a failover undid an acknowledgement", id: okID, script: taken + doneA + doneB +
			"4000 A2 s #1 1 - @0\n 4001 A2 e #1 ok\n" +
			"4002 A2 x #1 acknowledged", faults: []Fault{faultAt(faultKillMaster, 5, 500)}, again: 1},
		{name: "a failover undid an acknowledgement, and the message died", id: "p-1-mk1", script: taken + doneA +
			"2 B1 s #1 1 - @0\n 2.1 B1 e #1 ok\n 3 B1 x #1 acknowledged",
			faults:  []Fault{faultAt(faultKillMaster, 5, 500)},
			letters: []Letter{letterAt(3600, "p-1-mk1", "b", lua.ReasonCrashes, 1)}},
		{name: "a master that was replaced took the acknowledgement, too", id: "p-1-mc",
			script: "0 P try 10\n 1 P taken @10\n 2 P cancel asked\n" +
				"12 A1 s #11 1 - @10\n 13 A1 e #11 ok\n 14 A1 x #11 acknowledged\n 20 P cancel ok",
			faults: []Fault{faultAt(faultFreezeMaster, 2, 15)}},
		{name: "a master that was replaced delivered the message, and its successor perhaps cancelled it", id: "p-1-mc",
			script: "0 P try 10\n 1 P taken @10\n 2 P cancel asked\n" +
				"12 A1 s #11 1 - @10\n 13 A1 e #11 ok\n 14 A1 x #11 lost\n 20 P cancel maybe",
			faults: []Fault{faultAt(faultFreezeMaster, 2, 15)}},
		{name: "a master that was replaced went on for a moment", id: okID, script: "0 P try 0\n" + doneA + doneB +
			"10 P taken @10\n" +
			"11 A1 s #10 1 - @10\n 12 A1 e #10 ok\n 13 A1 x #10 acknowledged\n 11 B1 s #10 1 - @10\n 12 B1 e #10 ok\n 13 B1 x " +
			"#10 acknowledged",
			faults: []Fault{faultAt(faultFreezeMaster, 1, 9)}, again: 2},
		{name: "a master that was replaced took away what a worker held, and went", id: okID, script: taken + doneB +
			"2 A1 s #1 1 - @0\n 3000 A2 s #2990 2 a @2990\n 3001 A2 e #2990 ok\n 3002 A2 x #2990 lost\n" +
			"9000 A1 e #1 ok\n 9001 A1 x #1 acknowledged", faults: []Fault{faultAt(faultFreezeMaster, 2500, 3050)}, again: 1, burnt: 1},
		{name: "a reply lost on the way", id: okID, script: taken + doneB + "2 A1 s #1 1 - @0\n 3 A1 e #1 ok\n 4 A1 x #1 unknown",
			faults: []Fault{faultAt(faultLose, 3, 4, "A1")}},
		{name: "a retry is no duplicate", id: failID, script: taken + doneB +
			"2 A1 s #1 1 - @0\n 3 A1 e #1 fail\n 4 A1 x #1 retried\n" +
			"30 A2 s #29 2 a @29\n 31 A2 e #29 ok\n 32 A2 x #29 acknowledged", retries: 1},
		{name: "dies as it should", id: deadID, script: taken + "2 A1 s #1 1 - @0\n 3 A1 e #1 fail\n 4 A1 x #1 retried\n" +
			"30 A1 s #29 2 a @29\n 31 A1 e #29 fail\n 32 A1 x #29 dead\n" +
			"2 B2 s #1 1 - @0\n 3 B2 e #1 abandon\n 3000 B2 s #2900 2 b @2900\n 3001 B2 e #2900 abandon\n", retries: 2,
			letters: []Letter{letterAt(32, deadID, "a", "max_attempts", 2), letterAt(6000, deadID, "b", "visibility_timeout",
				2)}},
		{name: "cancelled before it was due", id: "p-1-mc",
			script: "0 P try 99\n 1 P taken @99\n 2 P cancel asked\n 3 P cancel ok"},
		{name: "gone with its master before anybody was told that it is taken", id: deadID,
			script: "0 P try 0\n 2 A1 s #1 1 - @0\n 3 A1 e #1 fail\n 4 A1 x #1 dead\n 2 B2 s #1 1 - @0\n 3 B2 e #1 fail\n" +
				"4 B2 x #1 dead\n 5000 P maybe", faults: []Fault{{Kind: faultFreezeMaster, From: time.UnixMilli(epoch + 200),
				Until: time.UnixMilli(epoch + 5000)}}},
		{name: "lost by the operator's own command", id: sideID, script: taken + doneA, operator: 1,
			faults: []Fault{{Kind: faultDeleteStream, Queue: queueSide, From: time.UnixMilli(epoch + 4),
				Until: time.UnixMilli(epoch + 9)}}},
		{name: "begun, deleted by an operator while its producer tries again, and taken then", id: sideID, again: 1,
			script: "0 P try 0\n 50 A1 s #50 1 - @50\n 51 A1 e #50 ok\n 52 A1 x #50 lost\n 95 P taken @90\n" +
				"96 A2 s #90 1 - @90\n 97 A2 e #90 ok\n 98 A2 x #90 acknowledged\n" +
				"96 B1 s #90 1 - @90\n 97 B1 e #90 ok\n 98 B1 x #90 acknowledged",
			faults: []Fault{{Kind: faultDeleteQueue, Queue: queueSide, From: time.UnixMilli(epoch + 45),
				Until: time.UnixMilli(epoch + 60)}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tally := play(t, c.id, c.script, c.faults, State{Letters: c.letters})
			if len(tally.Zero) > 0 {
				t.Errorf("found %v: %+v", tally.Zero, tally.Findings)
			}
			if sum(tally.Again) != c.again || sum(tally.Burnt) != c.burnt || sum(tally.Retries) != c.retries ||
				tally.LostByOperator != c.operator {
				t.Errorf("duplicates %v, attempts burnt %v, retries %v, lost by the operator %d", tally.Again, tally.Burnt,
					tally.Retries, tally.LostByOperator)
			}
		})
	}
}

// A delete command of an operator excuses only messages sent before it, and only in its own queue.
func TestOperatorsCommandExcusesOnlyWhatCameBefore(t *testing.T) {
	t.Parallel()
	command := Fault{Kind: faultDeleteQueue, Queue: queueSide, From: time.UnixMilli(epoch - 9), Until: time.UnixMilli(epoch - 1)}
	if tally := play(t, sideID, taken+doneA, []Fault{command}, State{}); tally.Zero[columnLost] != 1 ||
		tally.LostByOperator != 0 {
		t.Errorf("sent after the command: %v", tally)
	}
	command.Until = time.UnixMilli(epoch + 9)
	if tally := play(t, okID, taken+doneA, []Fault{command}, State{}); tally.Zero[columnLost] != 1 || tally.LostByOperator != 0 {
		t.Errorf("in another queue: %v", tally)
	}
}

// A line cut short by a kill is ignored. Any other line that cannot be parsed stops the audit.
func TestBooksTakeACutLastLineAndNothingElse(t *testing.T) {
	t.Parallel()
	head := fmt.Sprintf("%d is P producer -\n%d try %s 0\n", epoch*1000, epoch*1000, okID)
	for text, want := range map[string]bool{head + "18000000": true, head + "garbage\n": false, head + "1 s " + okID +
		" #1\n": false, "no head\n": false, "": true} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "P.ledger"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		tally, err := Audit(dir, 2*time.Second, nil, State{})
		if (err == nil) != want {
			t.Errorf("%q: %v", text, err)
		}
		if err == nil && text != "" && (tally.Tried != 1 || tally.Unknown != 1) {
			t.Errorf("%q: %+v", text, tally)
		}
	}
}
