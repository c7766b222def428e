// Package lmstfy serves the HTTP API of lmstfy, path for path, for programs that use lmstfy's clients.
// docs/reference/lmstfy.md lists the differences. Mount adds it to a gateway, whose tokens and limits it shares.
//
// A queue of lmstfy is the queue NAMESPACE:QUEUE with one consumer group, Group. A job is a message: Job.Message.
package lmstfy
