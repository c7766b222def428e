package output

import (
	"maps"
	"slices"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// TimeRows returns table rows of named times. Zero times are left out.
func TimeRows(now time.Time, namesAndTimes ...any) (rows [][]string) {
	for i := 0; i < len(namesAndTimes); i += 2 {
		if t := namesAndTimes[i+1].(time.Time); !t.IsZero() {
			rows = append(rows, []string{namesAndTimes[i].(string), human.Clock(t, now)})
		}
	}
	return rows
}

// MapRows returns table rows of a map, sorted by key. what is put before each key.
func MapRows(what string, m map[string]string) (rows [][]string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		rows = append(rows, []string{what + human.OneLine(name, 40), human.OneLine(m[name], 200)})
	}
	return rows
}
