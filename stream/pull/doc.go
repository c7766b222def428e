// Package pull serves callers that fetch deliveries one call at a time and settle them later by a token, perhaps
// through another process, as an HTTP gateway does.
//
// A Puller stores nothing about a delivery. The consumer and the deadline of a delivery are in the group's pending
// list: an entry that must be settled sooner than the visibility timeout starts with some idle time (lua/receive.lua).
// So the reclaimer finds the entry in time, whichever process died. All Pullers of a group read under one consumer
// name, because a delivery belongs to any caller that has its token.
//
// Waiting callers cost nothing: one blocked read per process notices for all callers when a stream has grown (package
// internal/tail). Then only as many callers ask the server as there may be messages for.
package pull
