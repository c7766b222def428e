package once

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func newOnce(t *testing.T, cfg Config) (*Once, *sql.DB) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "shop.db")
	db := redistest.Must(sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)"))
	t.Cleanup(func() { db.Close() })
	cfg.Dialect = SQLite
	o := redistest.Must(New(cfg))
	for range 2 { // the second call finds the table
		if err := o.Migrate(t.Context(), db); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE effects (id text)"); err != nil {
		t.Fatal(err)
	}
	return o, db
}

// effects returns the effects of handlers, in their order.
func effects(t *testing.T, db *sql.DB) string {
	t.Helper()
	rows := redistest.Must(db.QueryContext(t.Context(), "SELECT id FROM effects ORDER BY rowid"))
	defer rows.Close()
	var all []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		all = append(all, id)
	}
	return strings.Join(all, " ")
}

func insert(ctx context.Context, tx *sql.Tx, m *bridge.Message) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES (?)", m.Group+"/"+m.ID)
	return err
}

// Of all deliveries of a message to a group, the first one has an effect, and the others are acknowledged. Other
// groups, queues and IDs have effects of their own.
func TestAnEffectHappensOnce(t *testing.T) {
	t.Parallel()
	o, db := newOnce(t, Config{Table: "main.handled"})
	handler := o.Handler(db, insert)
	for _, m := range []bridge.Message{
		{ID: "a", Queue: "q", Group: "g", Attempt: 1}, {ID: "a", Queue: "q", Group: "g", Attempt: 2, Partition: 3},
		{ID: "b", Queue: "q", Group: "g"}, {ID: "a", Queue: "q", Group: "h"}, {ID: "a", Queue: "r", Group: "g"},
		{ID: "a", Queue: "q", Group: "h"},
	} {
		if err := handler(t.Context(), &m); err != nil {
			t.Fatal(err)
		}
	}
	redistest.Want(t, "effects", effects(t, db), "g/a g/b h/a g/a")
}

// If the effect fails or panics, its record vanishes with it, and the next attempt begins anew. The worker gets the
// handler's own error.
func TestAFailedEffectIsTriedAgain(t *testing.T) {
	t.Parallel()
	o, db := newOnce(t, Config{})
	m := &bridge.Message{ID: "a", Queue: "q", Group: "g"}
	fails := o.Handler(db, func(ctx context.Context, tx *sql.Tx, m *bridge.Message) error {
		return errors.Join(insert(ctx, tx, m), bridge.Snooze(time.Minute))
	})
	redistest.Want(t, "outcome", bridge.OutcomeOf(fails(t.Context(), m)).Action, bridge.ActionSnooze)
	func() {
		defer func() { recover() }()
		_ = o.Handler(db, func(ctx context.Context, tx *sql.Tx, m *bridge.Message) error {
			_ = insert(ctx, tx, m)
			panic("boom")
		})(t.Context(), m)
	}()
	redistest.Want(t, "effects", effects(t, db), "")
	if err := o.Handler(db, insert)(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "effects", effects(t, db), "g/a")
}

// An ID that is used again on purpose has an effect again, if the key of the configuration tells both apart, or if the
// record was forgotten.
func TestAnIDThatIsUsedAgain(t *testing.T) {
	t.Parallel()
	o, db := newOnce(t, Config{Key: func(m *bridge.Message) string { return m.ID + "@" + m.Headers["version"] }})
	handler := o.Handler(db, insert)
	deliver := func(version string) {
		t.Helper()
		m := &bridge.Message{ID: "a", Queue: "q", Group: "g", Headers: map[string]string{"version": version}}
		if err := handler(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	deliver("1")
	deliver("1")
	deliver("2")
	redistest.Want(t, "effects", effects(t, db), "g/a g/a")
	for _, known := range []bool{true, false} {
		redistest.Want(t, "known", redistest.Must(o.Forget(t.Context(), db, "q", "g", "a@1")), known)
	}
	deliver("1")
	redistest.Want(t, "effects", effects(t, db), "g/a g/a g/a")
}

// Old records are removed, the oldest first, and their messages have an effect again.
func TestOldRecordsAreRemoved(t *testing.T) {
	t.Parallel()
	o, db := newOnce(t, Config{})
	handler := o.Handler(db, insert)
	for i := range 5 {
		m := &bridge.Message{ID: fmt.Sprint(i), Queue: "q", Group: "g"}
		if err := handler(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		if i < 3 {
			if _, err := db.ExecContext(t.Context(), "UPDATE duestream_once SET done_ms = done_ms - ? WHERE id = ?",
				(time.Duration(10-i) * time.Hour).Milliseconds(), m.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, want := range []int{2, 1, 0} {
		redistest.Want(t, "removed", redistest.Must(o.Clean(t.Context(), db, time.Hour, 2)), want)
	}
	if err := handler(t.Context(), &bridge.Message{ID: "0", Queue: "q", Group: "g"}); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "effects", effects(t, db), "g/0 g/1 g/2 g/3 g/4 g/0")
}

// Mistakes are refused, and errors of the database reach the worker.
func TestMisuseIsTold(t *testing.T) {
	t.Parallel()
	o, db := newOnce(t, Config{Key: func(m *bridge.Message) string { return m.Headers["key"] }})
	handler := o.Handler(db, insert)
	_, badConfig := New(Config{Table: "a b", Dialect: 9})
	_, badAge := o.Clean(t.Context(), db, -1, 0)
	_, badQueue := o.Forget(t.Context(), db, "a b", "g", "a")
	noKey := handler(t.Context(), &bridge.Message{ID: "a", Queue: "q", Group: "g"})
	noText := handler(t.Context(), &bridge.Message{ID: "a", Headers: map[string]string{"key": "\xff"}})
	for i, err := range []error{badConfig, badAge, badQueue, noKey, noText} {
		if !errors.Is(err, bridge.ErrInvalid) {
			t.Error(i, err)
		}
	}
	redistest.Want(t, "schema", redistest.Must(New(Config{})).Schema(), SchemaPostgreSQL)
	db.Close()
	if err := handler(t.Context(), &bridge.Message{ID: "a", Headers: map[string]string{"key": "k"}}); err == nil {
		t.Error("no error of a closed database")
	}
}
