// Package asynq reads the tasks of asynq (0.23 to 0.26, github.com/hibiken/asynq) for package migrate.
//
// asynq stores each task in a hash of its own, asynq:{QUEUE}:t:ID, from its enqueueing until its end. The field msg
// holds the task, encoded by protobuf. The field state names its state: pending, active, scheduled, retry, archived,
// completed or aggregating. In addition, the ID is in one structure for its state: the list asynq:{QUEUE}:pending or
// asynq:{QUEUE}:active, or a zset such as asynq:{QUEUE}:scheduled, whose scores are Unix times in seconds. The zset
// asynq:{QUEUE}:lease has the end of the lease of each active task. asynq moves a task between states by a script, so
// the hash always tells the state.
//
// Invariants:
//   - a task keeps its ID, type, payload, headers, due time and remaining attempts (TestWhatATaskBecomes);
//   - a removed task leaves nothing behind, and asynq goes on with the others (TestRemovedTasksLeaveNothingBehind).
package asynq
