package outbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/duestream/duestream/internal/database"
)

// Dialect is a kind of database.
type Dialect int

// Dialects.
const (
	// PostgreSQL takes any number of relays at once, each with rows of its own (FOR UPDATE SKIP LOCKED).
	PostgreSQL Dialect = iota
	// SQLite is for quick tests. A relay keeps the program from writing while it hands rows over.
	SQLite
)

// SchemaPostgreSQL creates the table DefaultTable in PostgreSQL. Outbox.Schema returns the same statements for a table
// of another name.
//
// A row waits (failed_ms = 0) or was refused (failed_ms > 0). All times are in Unix milliseconds by the database's
// clock.
const SchemaPostgreSQL = `CREATE TABLE IF NOT EXISTS "duestream_outbox" (
  seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  operation  text   NOT NULL, -- 'schedule' or 'cancel'
  queue      text   NOT NULL,
  id         text   NOT NULL, -- of the message
  key        text   NOT NULL, -- ordering key; '' = none
  message    text   NOT NULL, -- JSON, as in a batch of POST /v1/queues/{queue}/messages
  written_ms bigint NOT NULL, -- when the statement ran
  due_ms     bigint NOT NULL, -- about when the message is due; for people
  tries      bigint NOT NULL DEFAULT 0, -- hand-overs of this row that failed for a reason of its own
  try_ms     bigint NOT NULL DEFAULT 0, -- not handed over before
  failed_ms  bigint NOT NULL DEFAULT 0, -- when it was refused; 0 = it waits
  error      text   NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS "duestream_outbox_waiting" ON "duestream_outbox" (queue, seq)
  WHERE failed_ms = 0 AND try_ms >= 0;
CREATE INDEX IF NOT EXISTS "duestream_outbox_id" ON "duestream_outbox" (queue, id, seq) WHERE failed_ms = 0;
CREATE INDEX IF NOT EXISTS "duestream_outbox_key" ON "duestream_outbox" (queue, key, seq)
  WHERE failed_ms = 0 AND key <> '';
CREATE INDEX IF NOT EXISTS "duestream_outbox_failed" ON "duestream_outbox" (seq) WHERE failed_ms > 0;
`

// Operations of a row.
const (
	scheduleRow = "schedule"
	cancelRow   = "cancel"
)

// queries are the statements of one table.
type queries struct {
	dialect Dialect
	schema  string
	insert  string // operation, queue, id, key, message, due, delay
	begin   string // prepares the transaction of a relay: in PostgreSQL, how long it may be idle
	windows string // queues that are left out, numbers by queue (both JSON), rows of all windows → window
	// Windows (JSON) and the limit for each → seq, operation, queue, id, key, age, tries, size. In SQLite the parameters
	// are the queues that are left out, and the limit for all.
	take    string
	resume  string // numbers, with commas → the columns of take, for those that may be taken
	behind  string // numbers of taken rows, with commas; limit → the columns of take, row before of its ID, of its key
	read    string // numbers, with commas → seq, message
	remove  string // numbers, with commas
	refuse  string // seq, error
	put     string // seq, error, delay: puts a row off
	status  string // → waiting, failed, age of the oldest waiting row
	failed  string // after, limit → the fields of Row
	retry   string // numbers, with commas
	discard string // numbers, with commas
}

// A row may be taken if it is the first of its ID, and the first of its ordering key. A row that another relay holds is
// not taken, and still counts as the first. The subqueries find the first row by one step of the index of IDs or keys:
// only this index has their order, and the first row from (queue, id) on has this ID, because the row itself has it.
// With min(seq) and equal columns PostgreSQL may walk along the numbers of all rows instead. The condition try_ms >= 0
// holds for every row; it is in the index of waiting rows, so that PostgreSQL uses that index for nothing else.
//
// Where the numbers of the rows are known, failed_ms + 0 makes PostgreSQL use the index of the numbers and no other.
// Without statistics, or with those of an empty table, PostgreSQL expects the other indexes to be small, and would read
// them whole.
const (
	columns = `
SELECT o.seq, o.operation, o.queue, o.id, o.key, NOW - o.written_ms, o.tries, octet_length(o.message)`
	takeColumns     = columns + "\nFROM TABLE_NAME AS o"
	takeConditions  = `o.failed_ms = 0 AND o.try_ms >= 0 AND ` + firstConditions
	firstConditions = `o.try_ms <= NOW
  AND o.seq = (SELECT e.seq FROM TABLE_NAME AS e
    WHERE (e.queue, e.id) >= (o.queue, o.id) AND e.failed_ms = 0 ORDER BY e.queue, e.id, e.seq LIMIT 1)
  AND (o.key = '' OR o.seq = (SELECT e.seq FROM TABLE_NAME AS e
    WHERE (e.queue, e.key) >= (o.queue, o.key) AND e.key <> '' AND e.failed_ms = 0
    ORDER BY e.queue, e.key, e.seq LIMIT 1))`

	takeSQLite = takeColumns + "\nWHERE o.queue NOT IN LEFT_OUT AND " + takeConditions + "\nORDER BY o.seq LIMIT $2"

	// windowsPostgreSQL looks for the names of the queues, by one step of the index for each. For each queue it returns a
	// window: the next rows behind a number. A window ends at the number of its last row. If no row is left behind the
	// window, it ends at the greatest bigint, and the next search leaves this queue out.
	windowsPostgreSQL = `WITH RECURSIVE queues(queue) AS (
  (SELECT e.queue FROM TABLE_NAME AS e WHERE e.failed_ms = 0 AND e.try_ms >= 0 ORDER BY e.queue LIMIT 1)
  UNION ALL
  SELECT (SELECT e.queue FROM TABLE_NAME AS e
    WHERE e.failed_ms = 0 AND e.try_ms >= 0 AND e.queue > q.queue ORDER BY e.queue LIMIT 1)
  FROM queues AS q WHERE q.queue IS NOT NULL
), chosen AS (
  SELECT * FROM (SELECT queue, COALESCE(CAST(CAST(CAST($2 AS text) AS jsonb) ->> queue AS bigint), 0) AS behind
    FROM queues WHERE queue IS NOT NULL AND queue NOT IN LEFT_OUT) AS q
  WHERE behind < 9223372036854775807
)
SELECT c.queue, c.behind, COALESCE((SELECT e.seq FROM TABLE_NAME AS e
  WHERE e.queue = c.queue AND e.failed_ms = 0 AND e.try_ms >= 0 AND e.seq > c.behind ORDER BY e.seq
  LIMIT 1 OFFSET (SELECT greatest(20, CAST($3 AS bigint) / greatest(1, count(*))) FROM chosen)), 9223372036854775807)
FROM chosen AS c`

	// takePostgreSQL takes an equal number of rows of each window. So a queue with many rows, or with rows that wait, does
	// not delay the others.
	takePostgreSQL = `SELECT r.* FROM jsonb_to_recordset(CAST(CAST($1 AS text) AS jsonb)) AS w(
  queue text, behind bigint, until bigint) CROSS JOIN LATERAL (` + takeColumns + `
WHERE o.queue = w.queue AND o.seq > w.behind AND o.seq <= w.until AND ` + takeConditions + `
ORDER BY o.seq LIMIT CAST($2 AS bigint) FOR UPDATE OF o SKIP LOCKED) AS r`

	resumeRuns = takeColumns + "\nWHERE o.seq NUMBERS AND o.failed_ms + 0 = 0 AND " + firstConditions

	// behindTaken walks along the IDs and the ordering keys of rows that are taken, by one step of an index for each row.
	// In PostgreSQL it locks the rows that it returns. A row with an earlier number may appear later, because its
	// transaction committed later, or because an operator retries it. Another relay then takes that row. It must not take
	// the rows behind it, which this relay hands over. A row may stand behind rows of another ID or key as well, so it is
	// returned with the number of the row before it, both of its ID and of its key.
	behindTaken = `WITH RECURSIVE of_id(queue, id, seq, n) AS (
  SELECT o.queue, o.id, o.seq, CAST(0 AS bigint) FROM TABLE_NAME AS o WHERE o.seq NUMBERS
  UNION ALL
  SELECT r.queue, r.id, (SELECT CASE WHEN (e.queue, e.id) = (r.queue, r.id) THEN e.seq END FROM TABLE_NAME AS e
    WHERE (e.queue, e.id, e.seq) > (r.queue, r.id, r.seq) AND e.failed_ms = 0
    ORDER BY e.queue, e.id, e.seq LIMIT 1), r.n + 1
  FROM of_id AS r WHERE r.seq IS NOT NULL AND r.n < CAST($2 AS bigint)
), of_key(queue, key, seq, n) AS (
  SELECT o.queue, o.key, o.seq, CAST(0 AS bigint) FROM TABLE_NAME AS o WHERE o.seq NUMBERS AND o.key <> ''
  UNION ALL
  SELECT r.queue, r.key, (SELECT CASE WHEN (e.queue, e.key) = (r.queue, r.key) THEN e.seq END FROM TABLE_NAME AS e
    WHERE (e.queue, e.key, e.seq) > (r.queue, r.key, r.seq) AND e.key <> '' AND e.failed_ms = 0
    ORDER BY e.queue, e.key, e.seq LIMIT 1), r.n + 1
  FROM of_key AS r WHERE r.seq IS NOT NULL AND r.n < CAST($2 AS bigint)
)` + columns + `,
  COALESCE((SELECT CASE WHEN (e.queue, e.id) = (o.queue, o.id) THEN e.seq END FROM TABLE_NAME AS e
    WHERE (e.queue, e.id, e.seq) < (o.queue, o.id, o.seq) AND e.failed_ms = 0
    ORDER BY e.queue DESC, e.id DESC, e.seq DESC LIMIT 1), 0),
  CASE WHEN o.key = '' THEN 0 ELSE COALESCE((
    SELECT CASE WHEN (e.queue, e.key) = (o.queue, o.key) THEN e.seq END FROM TABLE_NAME AS e
    WHERE (e.queue, e.key, e.seq) < (o.queue, o.key, o.seq) AND e.key <> '' AND e.failed_ms = 0
    ORDER BY e.queue DESC, e.key DESC, e.seq DESC LIMIT 1), 0) END
FROM TABLE_NAME AS o
WHERE o.seq AMONG(SELECT seq FROM of_id WHERE n > 0 UNION ALL SELECT seq FROM of_key WHERE n > 0)ROWS
  AND o.failed_ms + 0 = 0 AND o.try_ms <= NOW`
)

// queriesFor returns the statements for a table whose name was checked.
func queriesFor(dialect Dialect, table string) queries {
	isSQLite := dialect == SQLite
	prefix, name := database.Split(table)
	now, numbers := database.Now(isSQLite), `= ANY(CAST(string_to_array($1, ',') AS bigint[]))`
	leftOut, among, rows := `(SELECT jsonb_array_elements_text(CAST(CAST($1 AS text) AS jsonb)))`, `= ANY(ARRAY(`, `))`
	if isSQLite {
		among, rows = `IN (`, `)`
		numbers = `IN (SELECT value FROM json_each('[' || $1 || ']'))`
		leftOut = `(SELECT value FROM json_each($1))`
	}
	write := strings.NewReplacer("TABLE_NAME", prefix+`"`+name+`"`, "NOW", now, "NUMBERS", numbers,
		"LEFT_OUT", leftOut, "AMONG(", among, ")ROWS", rows).Replace
	q := queries{
		dialect: dialect,
		schema: strings.NewReplacer(
			`CREATE TABLE IF NOT EXISTS "duestream_outbox"`, `CREATE TABLE IF NOT EXISTS `+prefix+`"`+name+`"`,
			`ON "duestream_outbox"`, `ON `+prefix+`"`+name+`"`, "duestream_outbox", name,
		).Replace(SchemaPostgreSQL),
		// The time of the statement is rounded up, and every reading of the clock is rounded down, so that no time
		// becomes shorter.
		insert: write(`INSERT INTO TABLE_NAME (operation, queue, id, key, message, written_ms, due_ms)
VALUES ($1, $2, $3, $4, $5, NOW + 1,
  CASE WHEN CAST($6 AS bigint) > 0 THEN CAST($6 AS bigint) ELSE NOW + 1 END + CAST($7 AS bigint))`),
		// PostgreSQL guesses that few rows pass the conditions of take, and would sort all rows of a queue to find the
		// first ones. So the relay forbids sorting in its transaction, and the rows come in the order of the index.
		// Because of the same wrong guess, it would compile the query in each pass, which takes longer than the query
		// itself. PostgreSQL 10 has no setting for this. The limit of idle time frees the rows of a relay that is
		// frozen or cut off: its session would hold them until the keepalive of TCP ends it, after hours.
		begin: `SELECT set_config('enable_sort', 'off', true), set_config('enable_seqscan', 'off', true),
  set_config('enable_bitmapscan', 'off', true), set_config('idle_in_transaction_session_timeout', $1, true),
  CASE WHEN current_setting('jit', true) IS NOT NULL THEN set_config('jit', 'off', true) END`,
		windows: write(windowsPostgreSQL), take: write(takePostgreSQL),
		resume: write(resumeRuns + "\nFOR UPDATE OF o SKIP LOCKED"),
		behind: write(behindTaken + "\nFOR UPDATE OF o SKIP LOCKED"),
		read:   write(`SELECT seq, message FROM TABLE_NAME WHERE seq NUMBERS`),
		remove: write(`DELETE FROM TABLE_NAME WHERE seq NUMBERS`),
		refuse: write(`UPDATE TABLE_NAME SET failed_ms = NOW, error = $2, tries = tries + 1
WHERE seq = CAST($1 AS bigint)`),
		put: write(`UPDATE TABLE_NAME SET try_ms = NOW + CAST($3 AS bigint), error = $2, tries = tries + 1
WHERE seq = CAST($1 AS bigint)`),
		status: write(`SELECT count(*) FILTER (WHERE failed_ms = 0), count(*) FILTER (WHERE failed_ms > 0),
  COALESCE(max(NOW - written_ms) FILTER (WHERE failed_ms = 0), 0) FROM TABLE_NAME`),
		failed: write(`SELECT seq, operation, queue, id, message, written_ms, due_ms, failed_ms, error FROM TABLE_NAME
WHERE failed_ms > 0 AND seq > CAST($1 AS bigint) ORDER BY seq LIMIT CAST($2 AS bigint)`),
		retry: write(`UPDATE TABLE_NAME SET failed_ms = 0, try_ms = 0, tries = 0, error = ''
WHERE failed_ms > 0 AND seq NUMBERS`),
		discard: write(`DELETE FROM TABLE_NAME WHERE failed_ms > 0 AND seq NUMBERS`),
	}
	if isSQLite {
		// It changes nothing, and takes the lock for writing before anything is read.
		q.begin = write(`UPDATE TABLE_NAME SET tries = tries WHERE seq < 0`)
		q.take, q.behind = write(takeSQLite), write(behindTaken)
		q.resume = write(resumeRuns)
		q.schema = schemaOfSQLite(q.schema, prefix, name)
		for _, text := range []*string{
			&q.insert, &q.take, &q.resume, &q.behind, &q.read, &q.remove, &q.refuse, &q.put, &q.failed, &q.retry, &q.discard,
		} {
			*text = database.Parameters(isSQLite, *text)
		}
	}
	return q
}

// schemaOfSQLite converts the schema. AUTOINCREMENT never uses a number again. In SQLite the schema stands before the
// name of the index instead of the name of the table.
func schemaOfSQLite(schema, prefix, name string) string {
	schema = strings.Replace(schema, "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
		"integer PRIMARY KEY AUTOINCREMENT", 1)
	schema = strings.ReplaceAll(schema, "ON "+prefix+`"`+name+`"`, `ON "`+name+`"`)
	return strings.ReplaceAll(schema, `INDEX IF NOT EXISTS "`, `INDEX IF NOT EXISTS `+prefix+`"`)
}

// Schema returns the statements that create the table and its indexes unless they exist, for a program that migrates
// its database with a tool of its own. A newer release of this package only adds to the table.
func (o *Outbox) Schema() string { return o.sql.schema }

// Migrate creates the table and its indexes unless they exist. Any number of programs may call it at once. With a
// *sql.DB it is one transaction. Pgx makes a Tx of a pool of pgx.
func (o *Outbox) Migrate(ctx context.Context, db Tx) error {
	for _, statement := range database.Statements(o.sql.dialect == SQLite, o.sql.schema) {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("outbox: create the table: %w", err)
		}
	}
	return nil
}
