// Package delayqueue reads the messages of delayqueue (v1.0.6, github.com/hdt3213/delayqueue) for package migrate.
//
// delayqueue stores the payload of each message under a key of its own, dp:QUEUE:msg:ID, which expires. The hash
// dp:QUEUE:retry:cnt has the number of its remaining retries. In addition, the ID is in one structure: the zset
// dp:QUEUE:pending until the message is due, the list dp:QUEUE:ready, the zset dp:QUEUE:unack while a consumer has it,
// the list dp:QUEUE:retry, or the set dp:QUEUE:garbage, whose messages delayqueue is about to delete. The scores of the
// zsets are Unix times in seconds. With the option UseHashTagKey, and on a cluster, all keys begin with {dp:QUEUE}.
//
// Invariants:
//   - a message keeps its ID, payload, due time, remaining retries and time to live (TestWhatAMessageBecomes);
//   - a removed message leaves nothing behind (TestRemovedMessagesLeaveNothingBehind).
package delayqueue
