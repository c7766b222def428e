package campaign

import (
	"encoding/json"
	"strings"
	"testing"
)

// A campaign of several languages fails if a language did no work. Each part but the first of a role and group runs
// another language, and gets the rules that its program needs.
func TestEachLanguageWorks(t *testing.T) {
	var did languageWork
	by := func(name, role string) *writer { return &writer{name: name, role: role} }
	did.count([]record{{verb: verbTaken, by: by("python_producer1.0", roleProducer)},
		{verb: verbTaken, by: by("python_producer1.0", roleProducer)},
		{verb: verbStart, by: by("node_workera2.0", roleWorker)}, {verb: verbStart, by: by("workera1.0", roleWorker)}})
	if did.accepted["python"] != 1 || did.deliveries["node"] != 1 || len(did.deliveries) != 1 {
		t.Errorf("%+v", did)
	}
	missing := did.unused([]string{"python", "node"})
	for _, want := range []string{"delivered to a worker in python", "accepted from a producer in node"} {
		if !strings.Contains(missing, want) {
			t.Errorf("%q does not name what is missing: none %s", missing, want)
		}
	}

	c := &controller{cfg: Config{Languages: []Language{{"python", []string{"p"}}, {"node", []string{"n"}}}}}
	for i, want := range []string{"", "p", "n"} {
		p := part{Role: roleWorker, Index: i, Name: "w", Patience: 1}
		command := strings.Join(c.assignLanguage(&p), " ")
		if command != want || (p.Rules == nil) != (want == "") {
			t.Errorf("the part with index %d runs %q with the rules %v", i, command, p.Rules)
		}
	}
	text, err := json.Marshal(rulesOf(1))
	if err != nil || strings.Contains(string(text), `:0,`) || strings.Contains(string(text), `"Kind":"n"`) {
		t.Errorf("%v: %s", err, text)
	}
}
