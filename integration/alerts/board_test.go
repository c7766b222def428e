package alerts

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const boardPath = "deploy/grafana/duestream.json"

// board holds the tested parts of a Grafana board.
type board struct {
	Title, UID string
	Panels     []panel
	Templating struct{ List []variable }
}

type panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               struct{ UID string }
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct{ Expr, LegendFormat, RefID string }
}

type variable struct{ Name, Type, Definition string }

func readBoard(t testing.TB) (b board) {
	t.Helper()
	if err := json.Unmarshal([]byte(file(t, boardPath)), &b); err != nil {
		t.Fatal(err)
	}
	return b
}

// gridWidth is the number of columns of a Grafana board.
const gridWidth = 24

// units are the Grafana units that panels may use.
var units = []string{"s", "short", "ops", "bytes"}

// The board in deploy/grafana is well formed: IDs of panels are unique, no panel lies over another, each has a
// description, a data source, a unit and queries, and the rows are those that this test names.
func TestBoardIsWhole(t *testing.T) {
	t.Parallel()
	b := readBoard(t)
	var rows []string
	// titles of panels, by ID and by the cells of the grid they cover
	ids, covered := map[int]string{}, map[[2]int]string{}
	for _, p := range b.Panels {
		if other := ids[p.ID]; p.ID == 0 || other != "" {
			t.Errorf("%s has the ID %d of %q", p.Title, p.ID, other)
		}
		ids[p.ID] = p.Title
		if p.Title == "" || p.GridPos.W < 1 || p.GridPos.H < 1 || p.GridPos.X < 0 || p.GridPos.X+p.GridPos.W > gridWidth {
			t.Errorf("panel %d, %q, stands at %+v", p.ID, p.Title, p.GridPos)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := covered[[2]int{x, y}]; other != "" {
					t.Fatalf("%s lies over %s", p.Title, other)
				}
				covered[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if !slices.Contains(units, p.FieldConfig.Defaults.Unit) || p.Datasource.UID != "${datasource}" || p.Description == "" ||
			len(p.Targets) == 0 {
			t.Errorf("%s: unit %q, data source %q, description %q, %d queries", p.Title, p.FieldConfig.Defaults.Unit,
				p.Datasource.UID, p.Description, len(p.Targets))
		}
	}
	want := "On time? Stuck? What comes next Dead letters Throughput The bridges Redis"
	if got := strings.Join(rows, " "); got != want || b.Title != "duestream" || b.UID == "" {
		t.Errorf("%s (%s) has the rows %s", b.Title, b.UID, got)
	}
}

// The queries of panels and variables use only metrics and labels that duestream exports, and variables that the board
// has. Legends use only labels that their query keeps.
func TestBoardAsksForWhatIsThere(t *testing.T) {
	t.Parallel()
	b, all := readBoard(t), exported(t)
	known := []string{"__rate_interval"}
	for _, v := range b.Templating.List {
		known = append(known, v.Name)
		if v.Type == "query" { // label_values(metric, label) becomes metric{label=""}, which checkQuery understands
			checkQuery(t, "variable "+v.Name, strings.Replace(v.Definition, ", "+v.Name, "{"+v.Name+`=""}`, 1), all)
		}
	}
	for _, p := range b.Panels {
		refs := map[string]bool{}
		for _, q := range p.Targets {
			checkQuery(t, p.Title, q.Expr, all)
			for _, m := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(q.Expr, -1) {
				if !slices.Contains(known, m[1]) {
					t.Errorf("%s: no variable %s", p.Title, m[1])
				}
			}
			for _, m := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(q.LegendFormat, -1) {
				if !regexp.MustCompile(`by \([^)]*\b`+m[1]+`\b`).MatchString(q.Expr) && strings.Contains(q.Expr, "by (") {
					t.Errorf("%s: the legend names %s, which the query drops", p.Title, m[1])
				}
			}
			if refs[q.RefID] || q.RefID == "" || q.LegendFormat == "" {
				t.Errorf("%s: query %q has the legend %q", p.Title, q.RefID, q.LegendFormat)
			}
			refs[q.RefID] = true
		}
	}
}
