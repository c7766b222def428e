// Package policy is a leaf of the engine of duestream: the settings by which a queue releases, delivers and retries its
// messages. A Policy holds the rules for one group of a queue. It is read from two hashes in Redis: the queue's policy,
// and the defaults of the prefix. An Update holds changes; package stream writes them to all partitions of a queue.
//
// Invariants:
//   - a policy in force is always within its limits: values outside are skipped and named (FuzzPolicy,
//     TestPolicyValuesThatDoNotCountAreSkippedAndNamed);
//   - each setting comes from the most specific level that has it
//     (stream.TestPolicyComesFromTheMostSpecificLevelThatCounts);
//   - each setting has a row, a field and a description, and a row in the protocol (TestEverySettingHasARowAndAField,
//     TestEverySettingIsInTheProtocol).
package policy
