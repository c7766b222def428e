// Package migrate moves what an lmstfy server (1.0.15) keeps in its Redis into the queues that package lmstfy serves.
//
// An lmstfy keeps each job under a key of its own, j/NAMESPACE/QUEUE/ID, from when it is published until it is acknowledged or
// expires. Besides, one of three structures holds its ID and the tries that are left: the zset timer_set (delayed, or taken by a
// consumer until the end of its ttr), the list q/NAMESPACE/QUEUE (ready), the list d/NAMESPACE/QUEUE (dead letters). A server
// that is in use moves jobs from one to another while they are read, and a job may be missed in all of them. So a pass goes
// through the jobs' own keys as well, which stay where they are: SCAN finds each that is there from its beginning to its end. A
// job that was in no structure is looked for again, and passes are made until one finds nothing new.
//
// Invariants:
//   - a job comes with its ID, its bytes, its attributes, the tries and the ttl that are left (TestWhatAJobComesAs);
//   - jobs that are moved from structure to structure meanwhile are not missed (TestNothingIsMissedWhileTheServerWorks);
//   - a job is moved once, however often Move runs and wherever the job is by then (TestMovingAgainMovesNothingTwice);
//   - nothing is removed from lmstfy that was not taken (TestWhatIsRefusedStaysWhereItIs).
package migrate
