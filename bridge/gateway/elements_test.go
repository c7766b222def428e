package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// times returns n elements, separated by commas.
func times(n int, element string) string {
	return strings.TrimSuffix(strings.Repeat(element+",", n), ",")
}

// headers returns n members of an object.
func headers(n int) string {
	var members strings.Builder
	for i := range n {
		fmt.Fprintf(&members, `"%d":"",`, i)
	}
	return strings.TrimSuffix(members.String(), ",")
}

// A body with a million elements is refused before they are decoded. They took 360 bytes each, so that a body of
// 16 MiB took gigabytes. This test does not run in parallel, because it measures the memory of the process.
func TestElementsAreCountedBeforeTheyAreDecoded(t *testing.T) {
	const million = 1_000_000
	for _, one := range []struct{ field, value, rule, body string }{
		{"hits", "1000000", "must be 1 to 10000 hits of a search", `{"hits":[` + times(million, "{}") + `]}`},
		{"hits", "1000000", "must be 1 to 10000 hits of a search", // a key that is given twice, in other letters
			`{"h\u0069ts":[` + times(million/2, "{}") + `],"HitS":[` + times(million/2, "{}") + `]}`},
		{"groups", "1000002", "must be at most 1000000 in all hits together",
			`{"hits":[{},{"groups":[` + times(million, `""`) + `]},{"groups":["a","b"]}]}`},
		{"headers", "1000001", "must be at most 1000000 in all hits together",
			`{"hits":[{"headers":{` + headers(million+1) + `}}]}`},
		{"queues", "1000000", "must be at most 1000", `{"filter":{"queues":[` + times(million, `""`) + `]}}`},
		{"states", "1000000", "must be at most 5", `{"filter":{"states":[` + times(million, `""`) + `]}}`},
		{"ids", "1000000", "must be at most 1000", `{"filter":{"ids":[` + times(million, `""`) + `]}}`},
		{"headers", "1000000", "must be at most 64", `{"filter":{"headers":{` + headers(million) + `}}}`},
	} {
		text := []byte(one.body)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := decodeObject(text, &actRequest{})
		runtime.ReadMemStats(&after)
		var invalid *bridge.InvalidError
		if !errors.As(err, &invalid) {
			t.Errorf("%.30s: %v", text, err)
			continue
		}
		redistest.Want(t, "field", invalid.Field, one.field)
		redistest.Want(t, one.field, invalid.Value, `"`+one.value+`"`)
		redistest.Want(t, one.field, invalid.Rule, one.rule)
		if used := after.TotalAlloc - before.TotalAlloc; used > 4<<20 {
			t.Errorf("%.30s: the refusal of %d bytes allocated %d", text, len(text), used)
		}
	}
}

// A body with as many elements as are allowed is decoded; one more is refused, with all fields that have too many.
func TestTheLargestBodiesAreDecoded(t *testing.T) {
	t.Parallel()
	body := func(more int) string {
		return fmt.Sprintf(`{"hits":[%s],"filter":{"queues":[%s],"states":[%s],"ids":[%s],"headers":{%s}}}`,
			times(10_000+more, `{"groups":["a","b"]}`), times(1000+more, `"q"`), times(5+more, `"dead"`),
			times(1000+more, `"i"`), headers(64+more))
	}
	var request actRequest
	if err := decodeObject([]byte(body(0)), &request); err != nil {
		t.Fatal(err)
	}
	f := request.Filter
	redistest.Want(t, "elements", fmt.Sprint(len(request.Hits), len(f.Queues), len(f.States), len(f.IDs), len(f.Headers)),
		"10000 1000 5 1000 64")
	var fields []string
	for _, one := range faults(decodeObject([]byte(body(1)), &request)) {
		fields = append(fields, one.Field+" "+one.Value)
	}
	redistest.Want(t, "faults", strings.Join(fields, ", "),
		`hits "10001", queues "1001", states "6", ids "1001", headers "65"`)
}

// The walk steps over each value of JSON exactly, and counts the elements of their place alone.
func TestAWalkEndsWhereTheTextEnds(t *testing.T) {
	t.Parallel()
	for text, hits := range map[string]int{
		`{}`:                        0,
		`{"hits":null}`:             0,
		`{"hits":[]}`:               0,
		`{"hits":[ ]}`:              0,
		`{"hits":[[[]],{"a":[1]}]}`: 2,
		"{ \"hits\" :\t[ 1 ,\r\n-2.5e+7 , true,null , \"\" ] , \"x\" : [ ] }":          5,
		`{"a":{"hits":[1,2]},"b":"\"hits\":[1]","c":"\\","hits":["]","\\\"]","[",{}]}`: 4,
		`{"HITS":[{"hits":[1,2,3]}],"hit\u017f":[0]}`:                                  2, // ſ is folded to s
		`{"` + strings.Repeat("a", 100) + `":[1],"\ud800":[1],"hits":[1]}`:             1,
		`{"x":` + strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000) + `}`:        0,
	} {
		if !json.Valid([]byte(text)) {
			t.Fatal(text)
		}
		w, counts := walker{text: []byte(text)}, newElements()
		w.value(counts)
		redistest.Want(t, text, counts.inside[0].n, hits)
		redistest.Want(t, "end of "+text, w.at, len(text))
	}
}

// The names of an action are checked with one read of the registry, not with one for each name, and the log shows the
// first of them.
func TestNamedQueuesAreCheckedTogether(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	r := newRigAt(t, server.URL(), server.Prefix(t))
	var names []string
	for i := range 25 {
		names = append(names, fmt.Sprintf("q%02d", i))
	}
	if _, err := lua.Register(t.Context(), r.r.Client, lua.NewGlobals(r.prefix), names); err != nil {
		t.Fatal(err)
	}
	token := r.allow(access.Token{Name: "on-call", Verbs: []access.Verb{access.Operate}, Queues: []string{"q*"}})
	before := server.Calls(t)
	r.act(token, `{"action":"cancel","filter":{"text":"a","queues":["`+strings.Join(names, `","`)+`"]}}`)
	if n := server.Calls(t)["hexists"] - before["hexists"]; n > 1 {
		t.Errorf("%d calls of HEXISTS for %d names", n, len(names))
	}
	first := `queue="` + strings.Join(names[:20], ",") + ` and 5 more"`
	if log := r.log.String(); strings.Count(log, first) != 2 || strings.Contains(log, "q20,") {
		t.Errorf("no %s in %s", first, log)
	}
	r.act(token, `{"action":"cancel","filter":{"text":"a","queues":["q01","q00","q01"]}}`)
	if log := r.log.String(); !strings.Contains(log, "queue=q00,q01 ") {
		t.Errorf("the names of an action are not sorted, or not each once: %s", log)
	}

	// A queue may have keys without being registered. Its name is looked up once, too.
	k := lua.NewKeys(r.prefix, "q-unregistered")
	if err := r.r.Client.Do(t.Context(), r.r.Client.B().Hset().Key(k.Policy).FieldValue().
		FieldValue("note", "a").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	before = server.Calls(t)
	r.search(r.token, `{"filter":{"text":"a","queues":[`+times(1000, `"q-unregistered"`)+`]}}`)
	if n := server.Calls(t)["hexists"] - before["hexists"]; n > 2 {
		t.Errorf("%d calls of HEXISTS for one name", n)
	}
	r.do("POST", "/v1/act", `{"action":"cancel","hits":[`+times(1_000_000, "{}")+`]}`, jsonBody).
		refused(http.StatusUnprocessableEntity, typeInvalid).has(`"field":"hits"`).has("1000000").has("10000 hits")
}

// A message, and a recurrence, with a million headers or delays is refused before they are decoded. A batch of 16 MiB
// with eight million delays took three gigabytes. This test does not run in parallel, because it measures the memory of
// the process.
func TestElementsOfAMessageAreCountedBeforeTheyAreDecoded(t *testing.T) {
	const million = 1_000_000
	line := func(text []byte) error { _, err := parseLine(text); return err }
	recurrence := func(text []byte) error { _, err := parseRecurrence(text); return err }
	for _, one := range []struct {
		parse             func(text []byte) error
		field, rule, body string
	}{
		{line, "headers", "must be at most 64", `{"headers":{` + headers(million) + `}}`},
		{line, "retry_delays_ms", "must be at most 100 numbers", `{"retry_delays_ms":[` + times(million, "1") + `]}`},
		{recurrence, "headers", "must be at most 64", `{"headers":{` + headers(million) + `}}`},
	} {
		text := []byte(one.body)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := one.parse(text)
		runtime.ReadMemStats(&after)
		var invalid *bridge.InvalidError
		if !errors.As(err, &invalid) {
			t.Errorf("%.30s: %v", text, err)
			continue
		}
		redistest.Want(t, "field", invalid.Field, one.field)
		redistest.Want(t, one.field, invalid.Rule, one.rule)
		if used := after.TotalAlloc - before.TotalAlloc; used > 4<<20 {
			t.Errorf("%.30s: the refusal of %d bytes allocated %d", text, len(text), used)
		}
	}
	large := `{"payload":{"headers":{` + headers(1000) + `}},"headers":{` + headers(lua.MaxHeaders) +
		`},"retry_delays_ms":[` + times(lua.MaxDelays, "1000000") + `],"id":"` + strings.Repeat("i", fewElements) + `"}`
	m := redistest.Must(parseLine([]byte(large)))
	redistest.Want(t, "headers of a large message", len(m.Headers), lua.MaxHeaders)
}
