// Package outbox is a transactional outbox: it schedules and cancels messages inside a transaction of the program's own
// database. If the transaction commits, the message arrives. If it is rolled back, no message exists. Without an
// outbox, a program that commits and then schedules loses the message when it dies between the two. A program that
// schedules first sends messages about changes that were rolled back.
//
//	var box, err = outbox.New(outbox.Config{})
//
//	tx, err := db.BeginTx(ctx, nil)
//	… // the program's own statements
//	id, err := outbox.ScheduleKind(ctx, box, tx, CloseOrder, Order{ID: 42}, bridge.In(30*time.Minute))
//	err = tx.Commit()
//
// [Outbox.Schedule], [Outbox.Send], [ScheduleKind] and [Outbox.Cancel] write a row into a table of the database. They
// take a transaction of database/sql, or one of pgx by way of [Pgx]. A [Relay] hands the rows over to duestream, and
// deletes them. Any number of relays may run, in the program itself or beside it: they take different rows.
//
// Guarantees: every row whose transaction committed is handed over at least once. If a relay or the database dies
// between the hand-over of a row and its deletion, the row is handed over again, with the same message ID. If the
// message is still scheduled, the second hand-over changes nothing. If it was delivered already, it is delivered again;
// Config.Dedup prevents this. The operations on one ID of a queue are handed over in the order in which they were
// written. The messages of one ordering key are handed over in that order as well. Other messages have no order.
//
// The order is that of the statements. It is the order of the commits only if the second transaction wrote its row
// after the first one had committed, for example because both lock the same row of the program before. The order is
// only kept among rows of the outbox: do not also schedule or cancel the same ID directly. The order may be broken if a
// relay loses its connection to the database during a hand-over. This hand-over goes on for RelayConfig.Timeout at
// most, and another relay may overtake it.
//
// Databases: PostgreSQL 10 or newer, and SQLite 3.43 or newer for quick tests. The package imports no driver.
//
// Invariants:
//   - Rows of committed transactions arrive, and no others, whatever is killed (TestKillsLoseNothing in
//     integration/outbox).
//   - Operations on one ID keep their order, with several relays (TestOperationsOnOneIDKeepTheirOrder in
//     integration/outbox).
//   - No row is handed over by two relays at the same time, even if a row with an earlier number appears during a
//     hand-over (TestARowThatAppearsLateTakesNoOther in integration/outbox).
//   - A refused row stops no other (TestARefusedRowStopsNoOther).
//   - No relative time becomes shorter (TestATimeCountsFromTheStatement).
package outbox
