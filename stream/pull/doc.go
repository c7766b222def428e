// Package pull hands deliveries to callers who come for them one call at a time, and who settle them later by a token, perhaps
// through another process: what an HTTP gateway needs.
//
// A Puller keeps nothing of a delivery. Who holds it, and until when, stands in the group's pending list: an entry that is to be
// done in less than the visibility timeout is idle from the start (lua/receive.lua), and the reclaimer finds it in time, whoever
// died. All Pullers of a group read by one consumer name, because a delivery belongs to whoever has its token.
//
// Callers that wait cost nothing: one blocked read per process says for all of them when a stream has grown (package
// internal/tail), and then as many callers ask the server as there is news for.
package pull
