// Package view reads replies of Redis about queues; each kind of reply is read by one function. These are entry IDs and
// their order, XINFO GROUPS and CONSUMERS, INFO, the server's clock, a stream page by page (Walk), and partition
// counts. It also defines how durations, payloads and objects with an order are written as JSON (Millis, Payload,
// Object).
//
// Ask sends any commands in one round trip, and names command and key in its error; the readers use it. Each request
// has a deadline of its own, because the client library repeats reads for as long as the caller's context lives. A
// stream or queue that does not exist is empty, not an error.
//
// Invariants:
//   - any payload comes back from JSON bit for bit (TestPayloadInJSON, FuzzPayloadJSON);
//   - a walk holds one page at a time, of about PageBytes (deadletter.TestLargeLettersAreReadInSmallPages).
package view
