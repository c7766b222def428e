package bridgetest

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"sync"

	"github.com/duestream/duestream/lua"
)

//go:embed timed.lua
var timedLua string

// timedScript is a script of duestream that uses the clock of the kit.
type timedScript struct{ text, sha string }

var timedScripts sync.Map // SHA-1 of a script → *timedScript

// timedBySHA returns the form of a script that uses the clock of the kit; nil if the script is not one of duestream's.
func timedBySHA(sha string) *timedScript {
	if found, ok := timedScripts.Load(sha); ok {
		return found.(*timedScript)
	}
	name := lua.ScriptName(sha)
	if name == "" {
		return nil
	}
	text := timedLua + lua.Source(name)
	s := &timedScript{text, sha1Of(text)}
	timedScripts.Store(sha, s)
	return s
}

func sha1Of(text string) string {
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}
