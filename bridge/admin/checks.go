package admin

import (
	"github.com/duestream/duestream/lua"
)

// Checks of single values, as Schedule makes them. They return an InvalidError and do not touch Redis.
var (
	CheckPrefix      = lua.CheckPrefix
	CheckQueue       = lua.CheckQueue
	CheckGroup       = lua.CheckGroup
	CheckID          = lua.CheckID
	CheckPayload     = lua.CheckPayload
	CheckHeaders     = lua.CheckHeaders
	CheckDelay       = lua.CheckDelay
	CheckTime        = lua.CheckTime
	CheckMaxAttempts = lua.CheckMaxAttempts
	CheckPartitions  = lua.CheckPartitions
)

// Reasons returns why a message may have been dead-lettered.
func Reasons() []string { return lua.Reasons() }

// Limits of a message.
const (
	MaxPayloadBytes = lua.MaxPayloadBytes
	MaxErrorBytes   = lua.MaxErrorBytes
)
