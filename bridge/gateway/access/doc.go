// Package access says who may do what through a gateway: tokens, the queues and verbs that each is for, when it expires, how much
// it may ask for, and a line in the log for each thing that an operator does.
//
// Tokens are in Redis, in the hash <prefix>:tokens, or in a file; docs/ACCESS.md describes both. Neither holds a secret: a field
// of the hash is the SHA-256 of a secret, so whoever reads it cannot call anything, and a look-up compares nothing that its
// caller could find out byte by byte.
//
// Invariants:
//   - A token that is revoked is refused within FreshFor while Redis answers, and three times that after it was away, by every
//     Store (TestATokenIsRevokedForAllWithinASecond).
//   - While Redis is away, a Store knows for Grace what it knew, and nothing else (TestWhatIsKnownHoldsForAWhileWithoutRedis).
//   - What cannot be read as a token is refused, and stops no other (TestAForeignValueRefusesThatTokenAlone).
//   - No secret and no payload is written to Redis, to a file or to a log (TestNoSecretIsWrittenAnywhere).
package access
