// Package once makes handlers safe to run twice. A message may be delivered again: after a crash between the work and
// its acknowledgement, after a lost acknowledgement, or because two workers hold it for a while. This package records
// which messages of a group were handled, in the database of the program, in the transaction of the handler:
//
//	worker, err := bridge.NewWorker(bridge.WorkerConfig{…, Handler: box.Handler(db,
//		func(ctx context.Context, tx *sql.Tx, m *bridge.Message) error {
//			_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 999 WHERE id = 7")
//			return err
//		})})
//
// The record and the effect are committed together, or neither is. The second delivery finds the record, and is
// acknowledged without an effect. If two deliveries run at once, the second one waits for the first one's transaction.
// The effects inside the database then happen once for each message and group.
//
// Effects outside of that transaction are not covered. If the process dies between sending an e-mail and the commit,
// the handler sends the e-mail again. If the transaction is rolled back, the e-mail was sent all the same. For such
// effects, hand the message ID on as an idempotency key. Or write a row of package bridge/outbox in the transaction,
// and let another handler send the e-mail. The e-mail is then sent at least once, and never for a transaction that was
// rolled back.
//
// The queue, the group and the ID identify a message. Config.Key may set another text in place of the ID.
//
//   - If a program schedules an ID again on purpose, after its message was handled, the new message looks handled: it
//     is acknowledged without an effect. Choose IDs that are used once, or let Config.Key add a text that differs, such
//     as a header with a version. A debounced message (bridge.Replace) is such a case, and so is an ID like "close-42"
//     of an order that can be opened again. Occurrences of a recurrence have IDs of their own.
//   - A redriven dead letter has the ID of its message. If its effect was committed before the message died (the worker
//     crashed again and again between commit and acknowledgement), the redrive has no second effect. Otherwise it has
//     the first effect. To repeat an effect on purpose, use Once.Forget before the redrive.
//   - Entries that another program adds to a stream without the field id have IDs that are unique only in one partition
//     of their queue. Give them an ID.
//
// Call Once.Clean regularly: it removes old records. Keep records for longer than a message may come again: the time of
// all retries and snoozes, plus the time in which you may redrive a dead letter, plus the longest stay in an outbox.
// With the default policy retries last about a day. A record is about 150 bytes.
//
// Effects that are in no database of the program, such as a call of another service, can be recorded in Redis: see type
// Redis. That is weaker. The effect and its record are two steps, so an effect is repeated if the process dies between
// them. A claim keeps other attempts away while one calls the effect, and a fencing token lets a store of the program
// refuse the writes of an attempt that was paused. The remarks above on IDs and redriven letters also apply to Redis.
// In place of Once.Forget, delete the key duestream:{<queue>}:once:<group>:<ID>. Records expire after RedisConfig.Keep,
// and are lost if Redis loses them in a failover. They stay in Redis when their queue is deleted, and are not exported.
//
// Databases: PostgreSQL 10 or newer, and SQLite 3.43 or newer for quick tests. The package imports no driver.
//
// Invariants:
//   - Of all deliveries of a message to a group, one has an effect (TestAnEffectHappensOnce, and
//     TestDeliveriesAtOnceHaveOneEffect in integration/outbox).
//   - An effect that fails leaves no record (TestAFailedEffectIsTriedAgain).
//   - In Redis, one attempt at a time holds the claim (TestRedisOneHolder), tokens grow, and a stale holder cannot end
//     the claim of another attempt (TestRedisStaleHolder).
//   - A failover prevents neither a claim nor the record of an effect (TestRedisAFailover). An effect is also recorded
//     if the failover lost its claim (TestRedisALostClaimIsRecorded).
//   - A record in Redis prevents all later effects. An attempt that died prevents none
//     (TestRedisAProcessDiesBetweenTheSteps).
package once
