// Package search finds messages by their contents, in all states and in all queues, and changes nothing.
//
// Redis has no index of contents, so a search looks at every message. It does so on the server: a script looks at a
// part of a schedule or stream, for about a millisecond of processor time, and returns only the messages that pass the
// filter, without their payloads. Between the calls the search waits, so that it uses a small share of the server's
// time.
//
// Invariants:
//   - every message that stays in its place during the search, and passes the filter, is found once
//     (TestSearchFindsEachStateByEachField, TestSearchFollowsGrowth), except an entry that is for a group that does not
//     exist any more;
//   - texts are compared byte for byte, whatever they mean in a pattern (TestTextsAreLiteral);
//   - no payload leaves the server (TestSearchReadsNoPayload).
package search
