// Package access authenticates and authorizes the callers of a gateway. A token has verbs, queues, an expiry and rate
// limits. Every action of an operator gets a line in the log.
//
// Tokens are stored in Redis, in the hash <prefix>:tokens, or in a file; docs/guides/tokens.md describes both. Neither
// holds a secret. A field of the hash is the SHA-256 of a secret. So a reader of the hash cannot use a token, and a
// caller cannot find a secret byte by byte from the time that a look-up takes.
//
// Invariants:
//   - Every Store refuses a revoked token within FreshFor while Redis answers, and within three times FreshFor after an
//     outage of Redis (TestATokenIsRevokedForAllWithinASecond).
//   - During an outage of Redis, a Store accepts for Grace the tokens that it knew before, and no others
//     (TestWhatIsKnownHoldsForAWhileWithoutRedis).
//   - An unreadable token is refused, and does not affect other tokens (TestAForeignValueRefusesThatTokenAlone).
//   - No secret and no payload is written to Redis, to a file or to a log (TestNoSecretIsWrittenAnywhere).
package access
