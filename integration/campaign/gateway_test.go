package campaign

import (
	"bufio"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
)

// A worker behind two gateways uses the other one when one fails. So a fault of one gateway explains only a lost
// answer.
func TestOneGatewayExplainsOnlyWhatWasNotAnswered(t *testing.T) {
	t.Parallel()
	const (
		again = "2 W s #1 1 - @0\n 3 W e #1 ok\n 3000 B1 s #2900 2 b @2900\n 3001 B1 e #2900 ok\n" +
			"3002 B1 x #2900 acknowledged"
		untold = "2 W s #1 1 - @0\n 3 W e #1 ok\n 4 W x #1 unknown"
		unseen = "2900 W s #2890 2 b @2890\n 2901 W e #2890 ok\n 2902 W x #2890 acknowledged"
	)
	both := map[string]int{columnUnexplained: 1, columnBurnt: 1}
	first, second := faultAt(faultKillGateway, 3, 5, "G1.0"), faultAt(faultCutGateway, 100, 2500, "G2.1")
	for name, c := range map[string]struct {
		script string
		faults []Fault
		want   map[string]int
	}{
		"taken away from a worker for no reason": {again, nil, both},
		"taken away, and one gateway was killed": {again, []Fault{first}, both},
		"taken away, and one gateway failed twice": {again, []Fault{faultAt(faultTermGateway, 3, 5, "G2.0"), second},
			both},
		"taken away, and both were away": {again, []Fault{first, second}, map[string]int{}},
		"taken away, and both were cut off": {again,
			[]Fault{faultAt(faultStall, 100, 2500, "G1.0", "G2.1")}, map[string]int{}},
		"taken away, and both failed at other times": {again, []Fault{faultAt(faultKillGateway, -9000, -8000, "G1.0"), second},
			both},
		"taken away from a worker that was killed": {again, []Fault{faultAt(faultKillHTTP, 4, 4, "W")}, map[string]int{}},
		"taken away while a bridge was killed":     {again, []Fault{faultAt(faultKillBridge, 4, 4, "P")}, both},
		"no answer for no reason":                  {untold, nil, map[string]int{columnWrong: 1}},
		"no answer of a gateway that was killed":   {untold, []Fault{first}, map[string]int{}},
		"no answer, and the gateway was killed later": {untold,
			[]Fault{faultAt(faultKillGateway, 9000, 9000, "G1.0")}, map[string]int{columnWrong: 1}},
		"given to nobody for no reason":                {unseen, nil, map[string]int{columnBurnt: 1}},
		"given to nobody by a gateway that was killed": {unseen, []Fault{first}, map[string]int{}},
		"given to nobody, and another was killed": {unseen,
			[]Fault{faultAt(faultKillWorker, 3, 5, "A1")}, map[string]int{columnBurnt: 1}},
		"settled twice, through one gateway each": {strings.Replace(again, "3 W e #1 ok", "3 W e #1 ok\n 3 W x #1 acknowledged", 1),
			[]Fault{first, second}, map[string]int{columnOwners: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tally := play(t, okID, taken+doneA+c.script, c.faults, State{}); !maps.Equal(tally.Zero, c.want) {
				t.Errorf("found %v, planted %v: %+v", tally.Zero, c.want, tally.Findings)
			}
		})
	}
}

// A producer behind gateways repeats a message. It may be told once that it is a duplicate, and the message is still
// taken.
func TestWhatIsPublishedAgainIsPromisedOnce(t *testing.T) {
	t.Parallel()
	if tally := play(t, okID, strings.ReplaceAll(taken, "P", "S")+"5 S try 0\n 6 S taken @5\n"+doneA+doneB, nil,
		State{}); tally.Zero[columnTwice] != 1 || tally.PublishedHTTP != 1 {
		t.Errorf("taken twice: %v", tally)
	}
	if tally := play(t, okID, strings.ReplaceAll(taken, "P", "S")+doneA, nil, State{}); tally.Zero[columnLost] != 1 {
		t.Errorf("lost: %v", tally)
	}
	late := "0 S try 10\n 2100 S taken @2100\n 2200 S cancel asked\n 2201 S cancel ok\n 4000 A1 s #3990 1 - @3990\n" +
		"4001 A1 e #3990 ok\n 4002 A1 x #3990 acknowledged"
	stopped := faultAt(faultStopGateway, 5, 3900, "G1.0")
	for script, want := range map[string]int{late: 0, strings.ReplaceAll(late, "2100 ", "900 "): 1} {
		if tally := play(t, "p-1-mc", script, []Fault{stopped}, State{}); tally.Zero[columnCancelled] != want {
			t.Errorf("published again by a gateway that had stopped: %v", tally)
		}
	}
	if tally := play(t, "p-1-mc", late, nil, State{}); tally.Zero[columnCancelled] != 1 {
		t.Errorf("delivered after a cancel, and no gateway had stopped: %v", tally)
	}
	const end = " 4000 A1 s #3990 1 - @3990\n 4001 A1 e #3990 ok\n 4002 A1 x #3990 acknowledged"
	for script, want := range map[string]int{
		"0 S try 10\n 200 S cancel asked\n 201 S cancel ok\n 2300 S maybe\n":         0,
		"0 S try 10\n 200 S cancel asked\n 201 S cancel ok\n 2300 S taken @2300\n":   0,
		"0 S try 10\n 2300 S maybe\n 2400 S cancel asked\n 2401 S cancel ok\n":       1,
		"0 P try 10\n 200 P cancel asked\n 201 P cancel ok\n 2300 P maybe\n":         1,
		"0 S try 10\n 2300 S taken @2300\n 2400 S cancel asked\n 2401 S cancel ok\n": 1,
	} {
		if tally := play(t, "p-1-mc", script+end, nil, State{}); tally.Zero[columnCancelled] != want {
			t.Errorf("published again after a cancel, %s: %v", script, tally)
		}
	}
	r := &Result{HTTP: true}
	if text := r.unused(); !strings.Contains(text, "none over HTTP") {
		t.Error(text)
	}
}

// scripted returns a client of a server that gives these answers in order: a status and a body. "" cuts the
// connection.
func scripted(t *testing.T, answers ...string) *httpClient {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(answers) == 0 || answers[0] == "" {
			answers = answers[min(1, len(answers)):]
			panic(http.ErrAbortHandler)
		}
		status, body, _ := strings.Cut(answers[0], " ")
		answers = answers[1:]
		w.WriteHeader(map[string]int{"ok": 200, "duplicate": 409, "uncertain": 503, "full": 503, "not-scheduled": 404}[status])
		if status != "ok" {
			body = `{"type":"` + problemPrefix + status + `"}`
		}
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return newHTTPClient(part{Gateways: []string{s.URL}})
}

// After a lost answer, a client reports exactly what is known for certain.
func TestPublishingAgainKnowsWhatItKnows(t *testing.T) {
	t.Parallel()
	const due = `ok {"id":"x","due":"2030-01-02T03:04:05Z"}`
	one := okID // an ID that is sent as a single message
	for n := 2; hash(one)%3 != 0; n++ {
		one = plan{queueMain, kindOK, 0}.id("p", uint64(n))
	}
	for name, c := range map[string]struct {
		answers []string
		fresh   bool
		want    string
	}{
		"taken":                           {[]string{due}, true, verbTaken},
		"taken at last":                   {[]string{"", "uncertain", due}, true, verbTaken},
		"its own duplicate":               {[]string{"", "duplicate"}, true, verbTaken},
		"somebody's duplicate":            {[]string{"", "duplicate"}, false, verbDup},
		"a duplicate at once":             {[]string{"duplicate"}, true, verbDup},
		"refused":                         {[]string{"full"}, true, verbRefuse},
		"refused after an answer is lost": {[]string{"", "full"}, true, verbMaybe},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := time.Now().Add(time.Minute).Truncate(time.Millisecond)
			got := scripted(t, c.answers...).publish(queueMain, []bridge.NewMessage{{ID: one, Delay: time.Minute}}, c.fresh)[0]
			if v := verdict(one, got.Receipt, got.Err); v.verb != c.want || got.Err == nil && got.Due.Before(before) {
				t.Errorf("%v: %+v", v, got)
			}
		})
	}
	if err := scripted(t, "", "not-scheduled").Cancel(t.Context(), queueMain, one); change(err) != changeMaybe {
		t.Error(err)
	}
}

// A front cuts one reply in the middle, and closes connections while no process listens.
func TestFrontCutsReplies(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	f, err := newFront(t, func() string { return socket })
	if err != nil {
		t.Fatal(err)
	}
	ask := func() string {
		c, err := net.Dial("tcp", f.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write([]byte("hello\n"))
		text, _ := bufio.NewReader(c).ReadString('\n')
		return text
	}
	if got := ask(); got != "" {
		t.Errorf("nobody says %q", got)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			text, _ := bufio.NewReader(c).ReadString('\n')
			_, _ = c.Write([]byte(text))
			_ = c.Close()
		}
	}()
	f.tear(1)
	if got := ask() + "|" + ask(); got != "hel|hello\n" {
		t.Errorf("%q", got)
	}
}
