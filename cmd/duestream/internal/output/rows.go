package output

import (
	"maps"
	"slices"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// TimeRows returns table rows of times: name, time.Time, name, time.Time, … Zero times are left out.
func TimeRows(now time.Time, namesAndTimes ...any) (rows [][]string) {
	for i := 0; i < len(namesAndTimes); i += 2 {
		if t := namesAndTimes[i+1].(time.Time); !t.IsZero() {
			rows = append(rows, []string{namesAndTimes[i].(string), human.Clock(t, now)})
		}
	}
	return rows
}

// MapRows returns table rows of a map, sorted by key. It puts a prefix before each key.
func MapRows(prefix string, m map[string]string) (rows [][]string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		rows = append(rows, []string{prefix + human.OneLine(name, 40), human.OneLine(m[name], 200)})
	}
	return rows
}
