package admin

import (
	"github.com/duestream/duestream/lua"
)

// Checks of single values. Schedule makes the same ones. They return a *bridge.InvalidError and do not touch Redis.
var (
	CheckPrefix      = lua.CheckPrefix      // 1 to 128 of A-Z a-z 0-9 . _ : / -
	CheckQueue       = lua.CheckQueue       // 1 to 128 of A-Z a-z 0-9 . _ : -
	CheckGroup       = lua.CheckGroup       // 1 to 256 bytes of UTF-8 without control characters
	CheckID          = lua.CheckID          // 1 to 256 bytes of UTF-8 without control characters
	CheckKey         = lua.CheckKey         // the same
	CheckPayload     = lua.CheckPayload     // at most 16 MiB
	CheckHeaders     = lua.CheckHeaders     // at most 64, 32 KiB together, UTF-8
	CheckDelay       = lua.CheckDelay       // 0 to ten years
	CheckTime        = lua.CheckTime        // from 2001-09-09 to 2286-11-20
	CheckMaxAttempts = lua.CheckMaxAttempts // 1 to 1,000,000
	CheckDelays      = lua.CheckDelays      // at most 100, each 1 ms to ten years
	CheckPartitions  = lua.CheckPartitions  // 1 to 256
)

// Reasons returns all reasons that a dead letter may have.
func Reasons() []string { return lua.Reasons() }

// Limits of a message.
const (
	MaxPayloadBytes = lua.MaxPayloadBytes // of one message: 16 MiB
	MaxErrorBytes   = lua.MaxErrorBytes   // of the error that a retry or a dead letter carries: 1 KiB
)
