// Package bullmq reads the jobs of BullMQ (4 to 6, github.com/taskforcesh/bullmq) for package migrate.
//
// BullMQ stores each job in a hash of its own, PREFIX:QUEUE:ID, from its addition until its end. The hash does not tell
// the state of the job. The ID is in one structure for each state: the lists wait, paused and active, or the zsets
// prioritized, delayed, completed, failed and waiting-children. The score of delayed is 4096 times the due time in
// Unix milliseconds, plus a number that keeps the order. An active job has a lock, the key PREFIX:QUEUE:ID:lock, which
// expires unless its worker renews it. BullMQ moves a job between structures by a script. So a job is always in one of
// them, but a reader of several structures may miss it. Then the job is read again in the next pass.
//
// A job scheduler is a member of the zset repeat, whose score is the time of its next job, and a hash repeat:NAME. The
// next job is in the queue before its time comes, with the ID repeat:NAME:TIME. A worker that begins this job adds the
// one after it.
//
// Invariants:
//   - a job keeps its name, data, due time, and remaining attempts (TestWhatAJobBecomes);
//   - a flow is not torn apart (TestFlowsStayTogether);
//   - a scheduler and its next job are moved together, or stay together (TestSchedulersAndTheirNextJobs);
//   - a removed job leaves nothing behind, and BullMQ goes on with the others (TestRemovedJobsLeaveNothingBehind).
package bullmq
