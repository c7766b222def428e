package admin

import (
	"context"

	"github.com/duestream/duestream/lua"
)

// This file holds the library of Redis Functions, by which clients in any language call the scripts: see docs/PROTOCOL.md, section 17.

// What the calls below return besides ErrDenied, ErrUnavailable, and ErrFull: a full server takes no library.
var (
	// ErrNoFunctions: the server has no functions: it is older than Redis 7.0, or the in-process one of dev.
	ErrNoFunctions = lua.ErrNoFunctions
	// ErrForeignFunctions: a library called duestream is there, and it is not ours. Nothing was changed.
	ErrForeignFunctions = lua.ErrForeignFunctions
	// ErrNewerFunctions: the library there is of a newer release. Nothing was changed.
	ErrNewerFunctions = lua.ErrNewerFunctions
)

// What the calls below return.
type (
	Function     = lua.Function
	Library      = lua.Library // what one server has, and what was done there
	LibraryState = lua.LibraryState
)

// States of a Library.
const (
	LibraryAbsent  = lua.LibraryAbsent
	LibraryCurrent = lua.LibraryCurrent
	LibraryOlder   = lua.LibraryOlder
	LibraryNewer   = lua.LibraryNewer
	LibraryOther   = lua.LibraryOther
	LibraryForeign = lua.LibraryForeign
)

// Functions lists the functions of the library, with their keys and arguments.
func Functions() []Function { return lua.Functions() }

// FunctionsLibrary returns the text of the library, as FUNCTION LOAD takes it. The release, a version like v1.2.3, is what
// LoadFunctions compares later. A program that has none gives "": any library of ours that differs counts as one to replace then.
func FunctionsLibrary(release string) string { return lua.FunctionsLibrary(release) }

// FunctionsSource returns a hash of what the library of this program does.
func FunctionsSource() string { return lua.FunctionsSource() }

// ShowFunctions looks at every server: one, or all nodes of a cluster, replicas too. What failed is in the row of its server.
func (a *Admin) ShowFunctions(ctx context.Context, release string) []Library {
	return lua.Libraries(ctx, a.redis.Client, release)
}

// LoadFunctions loads the library on the server, or on every master of a cluster; replicas get it by replication, and it is saved with
// the data. It may be repeated, and called by many at once: where the same library is, nothing is done; one of ours that is not newer
// is replaced, in one step; of somebody else's, or a newer one, the call returns ErrForeignFunctions or ErrNewerFunctions and changes nothing
// on any server, unless force. Other errors are those of single servers, with the rest done; each is in its row, too.
func (a *Admin) LoadFunctions(ctx context.Context, release string, force bool) ([]Library, error) {
	return lua.LoadLibrary(ctx, a.redis.Client, release, force)
}

// DeleteFunctions deletes the library everywhere; one that is not ours only with force. Errors are as of LoadFunctions.
func (a *Admin) DeleteFunctions(ctx context.Context, release string, force bool) ([]Library, error) {
	return lua.DeleteLibrary(ctx, a.redis.Client, release, force)
}
