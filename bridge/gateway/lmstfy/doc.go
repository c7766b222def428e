// Package lmstfy is the HTTP API of lmstfy, path for path, for programs that use its clients: docs/LMSTFY.md says what is the
// same and what is not.
//
// A queue of lmstfy is the queue NAMESPACE:QUEUE with one consumer group, Group. A job is a message: Job.Message.
package lmstfy
