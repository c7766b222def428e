// Package migrate moves the jobs in the Redis of an lmstfy server (1.0.15) into the queues that package lmstfy serves.
//
// lmstfy stores each job under a key of its own, j/NAMESPACE/QUEUE/ID, from its publication until it is acknowledged
// or expires. In addition, one of three structures holds its ID and its remaining tries: the zset timer_set (delayed,
// or in flight until the end of its ttr), the list q/NAMESPACE/QUEUE (ready), or the list d/NAMESPACE/QUEUE (dead
// letters). A server in use moves jobs between the structures while they are read, so a job may be missed in all of
// them. Therefore a pass also scans the jobs' own keys, which do not move: SCAN returns every key that exists during
// the whole scan. The next pass looks again for a job that was in no structure. Passes are repeated until one finds
// nothing new.
//
// Invariants:
//   - a job keeps its ID, bytes, attributes, remaining tries and remaining ttl (TestWhatAJobComesAs);
//   - jobs that change the structure meanwhile are not missed (TestNothingIsMissedWhileTheServerWorks);
//   - a job is moved once, however often Move runs and in whatever state the job is (TestMovingAgainMovesNothingTwice);
//   - no job is removed from lmstfy that was not stored in duestream (TestWhatIsRefusedStaysWhereItIs).
package migrate
