// Package migrate moves the jobs of another program, which keeps them in its Redis, into queues of duestream.
//
// A Source reads the Redis of one program: see the packages below this one. Move does the rest. It makes passes: a pass
// lists all jobs of the Source, stores those that are new, and deletes them from the Source if asked to. A program in
// use moves its jobs between its structures while they are read. Therefore a pass lists the keys of the jobs, which do
// not move, and a job that is in no structure is read again in the next pass. Passes are repeated until one finds
// nothing new.
//
// Move stores a job, then remembers its ID for a time, and then deletes it from the Source. So Move may be killed at
// any moment, and a repeated Move continues without moving a job twice.
//
// Invariants:
//   - a job is moved once, however often Move runs and in whatever state the job is (TestMovingAgainMovesNothingTwice);
//   - a job that is in no structure is not missed, and is moved at last (TestAJobInNoStructureIsReadAgain);
//   - no job is removed that duestream does not hold (TestWhatIsRefusedStaysWhereItIs).
package migrate
