// Package database has the common parts of the packages that write into a program's own database: names of tables,
// expressions of PostgreSQL and SQLite, and an adapter for pgx. It imports no driver.
package database

import (
	"context"
	"database/sql"
	"errors"
	"regexp"
	"strings"

	"github.com/duestream/duestream/lua"
)

var tableName = regexp.MustCompile(`^([a-z_][a-z0-9_]{0,39}\.)?[a-z_][a-z0-9_]{0,39}$`)

// CheckTable refuses names of tables that would need more than quotes.
func CheckTable(name string) error {
	if !tableName.MatchString(name) {
		return lua.Invalid("table", name, "must be a name or schema.name, each 1 to 40 of a-z 0-9 _, no digit first")
	}
	return nil
}

// Split divides a checked name of a table. prefix is the quoted schema with a dot, or "".
func Split(table string) (prefix, name string) {
	if schema, name, ok := strings.Cut(table, "."); ok {
		return `"` + schema + `".`, name
	}
	return "", table
}

// Now returns an expression for the time in Unix milliseconds by the clock of the database, rounded down.
func Now(isSQLite bool) string {
	if isSQLite {
		return `CAST(round(unixepoch('now', 'subsec') * 1000) AS integer)`
	}
	return `CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint)`
}

// Parameters converts the parameters $1, $2, … of a statement to those of the database.
func Parameters(isSQLite bool, statement string) string {
	if isSQLite {
		return strings.ReplaceAll(statement, "$", "?") // ?1 is a parameter by its place
	}
	return statement
}

var comment = regexp.MustCompile(` *--[^\n]*`)

// creation is a statement of a schema: the name of a table or an index, and the schema in which it is, if the table has
// one.
var creation = regexp.MustCompile(
	`^\s*CREATE (?:TABLE|INDEX) IF NOT EXISTS ("[^"]+"\.)?("[^"]+")(?:\s+ON ("[^"]+"\.)?")?`)

// Statements returns the statements with which a schema is created, each for one call. If two sessions of PostgreSQL
// created the same table at once, one would fail in spite of IF NOT EXISTS. So there a lock comes first. A DO block is
// one statement, so it also runs where drivers prepare statements.
//
// PostgreSQL asks for the right to create, and locks the table, before it looks whether an index exists. The lock waits
// for all transactions that have written into the table, and everybody who writes later waits for the lock. So the
// block looks first.
func Statements(isSQLite bool, schema string) (all []string) {
	schema = comment.ReplaceAllString(schema, "")
	block := "DO $do$ BEGIN PERFORM pg_advisory_xact_lock(hashtext('duestream'));\n"
	for statement := range strings.SplitSeq(schema, ";") {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		all = append(all, statement)
		parts := creation.FindStringSubmatch(statement)
		if parts == nil {
			block += statement + ";\n"
			continue
		}
		name := `'` + parts[1] + parts[3] + parts[2] + `'`
		if parts[1]+parts[3] == "" {
			name = `quote_ident(current_schema()) || '.' || ` + name
		}
		block += "IF to_regclass(" + name + ") IS NULL THEN " + statement + ";\nEND IF;\n"
	}
	if isSQLite {
		return all
	}
	return []string{block + "END $do$"}
}

// Pgx gives a transaction, connection or pool of pgx the method of database/sql.
type Pgx func(ctx context.Context, query string, args ...any) (rows int64, err error)

// OfPgx returns the Pgx of a transaction, connection or pool.
func OfPgx[R interface{ RowsAffected() int64 }](
	exec func(ctx context.Context, query string, args ...any) (R, error)) Pgx {
	return func(ctx context.Context, query string, args ...any) (int64, error) {
		result, err := exec(ctx, query, args...)
		if err != nil {
			return 0, err
		}
		return result.RowsAffected(), nil
	}
}

// ExecContext executes a statement.
func (exec Pgx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	rows, err := exec(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return rowsAffected(rows), nil
}

// rowsAffected is the result of a statement of pgx.
type rowsAffected int64

func (n rowsAffected) RowsAffected() (int64, error) { return int64(n), nil }

func (n rowsAffected) LastInsertId() (int64, error) {
	return 0, errors.New("PostgreSQL has no last insert ID")
}
