package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

//go:generate env DUESTREAM_TEST_UPDATE=1 go test . -run ^TestEachFeatureHasACaseOrAGap$ -count=1

// featureList is features.json: for each feature of the protocol, how each client is tested.
type featureList struct {
	Reasons  map[string]string // of gaps
	Features map[string]feature
}

// feature tells which cases of the kit test a feature. Without cases, it tells for each client either the reason of the
// gap, or the file and the name of a test of the client's own. All stands for every client that has no text of its own.
type feature struct {
	Cases                          []string // as kind/name
	All, Go, Python, Node, Example string
}

// featureClients are the columns of the page.
var featureClients = []struct {
	name    string
	text    func(feature) string
	sources string         // pattern of the client's source files, below the root of the repository; "" = not read
	calls   *regexp.Regexp // how the sources name a script
}{
	{"Go SDK", func(f feature) string { return f.Go }, "", nil},
	{"Python", func(f feature) string { return f.Python }, "clients/python/src/duestream/*.py",
		regexp.MustCompile(`\bevaluate(?:_each)?\("(\w+)"`)},
	{"Node.js", func(f feature) string { return f.Node }, "clients/node/src/*.ts",
		regexp.MustCompile(`\bevaluate(?:Each)?\('(\w+)'`)},
	{"Examples", func(f feature) string { return f.Example }, "", nil},
}

// featureKinds are the kinds of features, each with the section and the table of the protocol that list them.
var featureKinds = []struct{ kind, heading, section, table string }{
	{"meta", "Fields of meta", "## 4.", "| Name | Value |"},
	{"entry", "Fields of entries", "## 5.", "| Field | Value |"},
	{"dead letter", "Fields of dead letters", "## 10.", "| Field | Value |"},
	{"reason", "Reasons of dead letters", "## 10.", "| Reason |"},
	{"setting", "Settings of queues and groups", "## 11.", "| Setting |"},
	{"recurrence", "Fields of recurrences", "## 19.", "| Field | Encoding |"},
	{"script", "Scripts", "", ""}, // the files of the directory lua
}

const repository = "../../../"

// Each field, setting and script of the protocol has a case of the kit, or a test of its own or a recorded gap for each
// client. docs/reference/features.md lists them; DUESTREAM_TEST_UPDATE=1 writes it anew.
func TestEachFeatureHasACaseOrAGap(t *testing.T) {
	list := readFeatures(t)
	found := protocolFeatures(t)
	for _, name := range found {
		if _, is := list.Features[name]; !is {
			t.Errorf("%s is in the protocol, and has neither a case nor a gap in features.json", name)
		}
	}
	for name := range list.Features {
		if !slices.Contains(found, name) {
			t.Errorf("%s is in features.json, and not in the protocol", name)
		}
	}
	used := map[string]bool{}
	for _, name := range found {
		for _, problem := range problemsOf(t, name, list.Features[name], list.Reasons, used) {
			t.Errorf("%s: %s", name, problem)
		}
	}
	for reason := range list.Reasons {
		if !used[reason] {
			t.Errorf("no gap has the reason %q", reason)
		}
	}
	for _, problem := range mentionProblems(t, list) {
		t.Error(problem)
	}
	const page = "features.md"
	text := featuresPage(list, found)
	if os.Getenv("DUESTREAM_TEST_UPDATE") != "" {
		if err := os.WriteFile(reference+page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, page) != text {
		t.Errorf("%s is out of date: run make reference", page)
	}
}

func readFeatures(t *testing.T) (list featureList) {
	t.Helper()
	file, err := os.Open("features.json")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	decoder := json.NewDecoder(file)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&list); err != nil {
		t.Fatal(err)
	}
	for name, f := range list.Features {
		for _, text := range []*string{&f.Go, &f.Python, &f.Node, &f.Example} {
			if *text == "" {
				*text = f.All
			}
		}
		list.Features[name] = f
	}
	return list
}

// protocolFeatures returns the fields and settings in the tables of the protocol, and the scripts, each after its kind.
func protocolFeatures(t *testing.T) (names []string) {
	t.Helper()
	code := regexp.MustCompile("`([^`]+)`")
	lines := strings.Split(read(t, "protocol.md"), "\n")
	for _, k := range featureKinds {
		before, section, inTable := len(names), "", false
		for _, line := range lines {
			if strings.HasPrefix(line, "## ") {
				section = line
			}
			switch {
			case k.table == "" || !strings.HasPrefix(section, k.section):
			case !strings.HasPrefix(line, "|"):
				inTable = false
			case strings.HasPrefix(line, k.table):
				inTable = true
			case inTable:
				for _, name := range code.FindAllStringSubmatch(strings.Split(line, "|")[1], -1) {
					names = append(names, k.kind+" "+name[1])
				}
			}
		}
		if k.table == "" {
			for _, path := range glob(t, "lua/*.lua") {
				names = append(names, k.kind+" "+strings.TrimSuffix(filepath.Base(path), ".lua"))
			}
		}
		if len(names) == before {
			t.Fatalf("the protocol has no %s", k.heading)
		}
	}
	return names
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(repository + pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: no files (%v)", pattern, err)
	}
	return paths
}

// problemsOf returns what is wrong with an entry of features.json. It marks the reasons that the entry uses.
func problemsOf(t *testing.T, name string, f feature, reasons map[string]string, used map[string]bool) (all []string) {
	t.Helper()
	for _, one := range f.Cases {
		kind, name, _ := strings.Cut(one, "/")
		if !slices.ContainsFunc(Cases(Kind(kind), Complete), func(c Case) bool { return c.Name == name }) {
			all = append(all, fmt.Sprintf("the kit has no case %q", one))
		}
	}
	for _, client := range featureClients {
		text := client.text(f)
		_, isReason := reasons[text]
		used[text] = true
		switch path, test, isTest := strings.Cut(text, " "); {
		case text == "" && len(f.Cases) == 0:
			all = append(all, client.name+" has neither a case, nor a test of its own, nor a gap")
		case text == "":
		case len(f.Cases) > 0:
			all = append(all, fmt.Sprintf("%s passes the cases %v, and has a further entry %q", client.name, f.Cases, text))
		case isReason:
		case !isTest || !strings.Contains(path, "/"):
			all = append(all, fmt.Sprintf("%s: %q is neither a reason nor a test", client.name, text))
		default:
			source, err := os.ReadFile(repository + path)
			if err != nil || !strings.Contains(string(source), test) {
				all = append(all, fmt.Sprintf("%s: %s has no test %q (%v)", client.name, path, test, err))
			}
		}
	}
	return all
}

// mentionProblems compares the list with the sources of the packages: a package with a gap must not call the script, or
// name the field or setting; a package without a gap must. Names that are plain words, such as count, say nothing.
func mentionProblems(t *testing.T, list featureList) (problems []string) {
	t.Helper()
	for _, client := range featureClients {
		if client.sources == "" {
			continue
		}
		var sources strings.Builder
		for _, path := range glob(t, client.sources) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			sources.Write(text)
		}
		calls := map[string]bool{}
		for _, call := range client.calls.FindAllStringSubmatch(sources.String(), -1) {
			calls[call[1]] = true
		}
		for _, name := range slices.Sorted(maps.Keys(list.Features)) {
			f, word := list.Features[name], name[strings.LastIndex(name, " ")+1:]
			isScript := strings.HasPrefix(name, "script ")
			if !isScript && (!strings.Contains(word, "_") || strings.HasPrefix(name, "reason ")) {
				continue
			}
			_, isGap := list.Reasons[client.text(f)]
			named, mentioned := calls[word], calls[word]
			if !isScript {
				named, mentioned = mentions(sources.String(), word)
			}
			switch {
			case isGap && named && !ambiguous(name, list, client.text):
				problems = append(problems, fmt.Sprintf("%s: %s has it, although a gap is recorded", name, client.name))
			case !isGap && !mentioned:
				problems = append(problems, fmt.Sprintf("%s: %s has it by the list, and its source does not", name,
					client.name))
			}
		}
	}
	return problems
}

// mentions reports whether a source has a name as a string or as the name of a field (named), and whether it has the
// name in any form, also without its unit (mentioned).
func mentions(source, name string) (named, mentioned bool) {
	named = regexp.MustCompile(`["'\x60]` + name + `["'\x60]|\b` + name + `:`).MatchString(source)
	stem := `"` + strings.TrimSuffix(name, "_ms") + `"`
	return named, strings.Contains(source, name) || strings.Contains(source, stem)
}

// ambiguous reports whether another kind of feature has the same name, and the client has that one. Then the name in a
// source does not tell which of them it is.
func ambiguous(name string, list featureList, text func(feature) string) bool {
	word := name[strings.LastIndex(name, " ")+1:]
	for other, f := range list.Features {
		_, isGap := list.Reasons[text(f)]
		if other != name && !isGap && !strings.HasPrefix(other, "script ") && strings.HasSuffix(other, " "+word) {
			return true
		}
	}
	return false
}

// featuresPage returns docs/reference/features.md.
func featuresPage(list featureList, found []string) string {
	var b strings.Builder
	b.WriteString("# Features of the clients\n\n" +
		"<!-- Written by `make reference` from cmd/duestream/conformance/features.json. Do not edit. -->\n\n" +
		"This page lists all fields, settings and scripts of [the protocol](protocol.md), and how each client is tested\n" +
		"with them. The clients are the Go SDK, the packages in [Python](../../clients/python/README.md) and\n" +
		"[Node.js](../../clients/node/README.md), and the [examples](../../examples/README.md), which use plain commands\n" +
		"and functions. A cell has one of:\n\n" +
		"- *kit*: the client passes the [cases](conformance-cases.md) in the row. *complete*: the examples pass them\n" +
		"  only with the [functions library](protocol.md#17-functions), because they are cases of level complete.\n" +
		"- a link: the kit has no case for it, and this test of the client's own has.\n" +
		"- the reason of a gap, in italics:\n\n| Gap | Reason |\n|---|---|\n")
	for _, reason := range slices.Sorted(maps.Keys(list.Reasons)) {
		fmt.Fprintf(&b, "| *%s* | %s |\n", reason, list.Reasons[reason])
	}
	for _, k := range featureKinds {
		fmt.Fprintf(&b, "\n## %s\n\n| Name | Cases |", k.heading)
		for _, client := range featureClients {
			fmt.Fprintf(&b, " %s |", client.name)
		}
		b.WriteString("\n|---|---|---|---|---|---|\n")
		for _, name := range found {
			word, is := strings.CutPrefix(name, k.kind+" ")
			if !is {
				continue
			}
			f := list.Features[name]
			cases := make([]string, len(f.Cases))
			for i, one := range f.Cases {
				cases[i] = "`" + one + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s |", word, strings.Join(cases, ", "))
			for _, client := range featureClients {
				fmt.Fprintf(&b, " %s |", cell(client.name, client.text(f), f.Cases, list.Reasons))
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// cell returns the text of a feature in the column of a client.
func cell(client, text string, cases []string, reasons map[string]string) string {
	if text == "" {
		if client == "Examples" && !slices.ContainsFunc(cases, isBelowComplete) {
			return "complete"
		}
		return "kit"
	}
	if _, isReason := reasons[text]; isReason {
		return "*" + text + "*"
	}
	path, test, _ := strings.Cut(text, " ")
	return fmt.Sprintf("[%s](%s%s)", test, "../../", path)
}

// isBelowComplete reports whether a case, as kind/name, is of a level below complete.
func isBelowComplete(one string) bool {
	kind, name, _ := strings.Cut(one, "/")
	return slices.ContainsFunc(Cases(Kind(kind), Good), func(c Case) bool { return c.Name == name })
}
