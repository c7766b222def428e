// Package lmstfy reads the jobs of an lmstfy server (1.0.15, github.com/bitleak/lmstfy) for package migrate. They go
// into the queues that package bridge/lmstfy serves.
//
// lmstfy stores each job under a key of its own, j/NAMESPACE/QUEUE/ID, from its publication until it is acknowledged
// or expires. In addition, one of three structures holds its ID and its remaining tries: the zset timer_set (delayed,
// or in flight until the end of its ttr), the list q/NAMESPACE/QUEUE (ready), or the list d/NAMESPACE/QUEUE (dead
// letters). A server in use moves jobs between the structures while they are read, so a job may be missed in all of
// them. Then it is read again in the next pass.
//
// Invariants:
//   - a job keeps its ID, bytes, attributes, remaining tries and remaining ttl (TestWhatAJobComesAs);
//   - jobs that change the structure meanwhile are not missed (TestNothingIsMissedWhileTheServerWorks);
//   - a job is moved once, however often it is read and in whatever state it is (TestMovingAgainMovesNothingTwice);
//   - no job is removed from lmstfy that was not stored in duestream (TestWhatIsRefusedStaysWhereItIs).
package lmstfy
