package admin

import (
	"context"

	"github.com/duestream/duestream/lua"
)

// This file holds the calls for the library of Redis Functions. Clients in any language can call the scripts by that
// library: see docs/reference/protocol.md, section 17.

// Errors of the calls below. They also return ErrDenied, ErrUnavailable, and ErrFull, because a full server refuses a
// library.
var (
	// ErrNoFunctions: the server has no Redis Functions. It is older than Redis 7.0, or it is the in-process server
	// of dev.
	ErrNoFunctions = lua.ErrNoFunctions
	// ErrForeignFunctions: the server has a library called duestream that is not ours. Nothing was changed.
	ErrForeignFunctions = lua.ErrForeignFunctions
	// ErrNewerFunctions: the server has a library of a newer release. Nothing was changed.
	ErrNewerFunctions = lua.ErrNewerFunctions
)

// Function is one function of the library, with its keys and arguments: see [lua.Function].
type Function = lua.Function

// Library is the state of the library on one server, with the action that was taken there: see [lua.Library].
type Library = lua.Library

// LibraryState compares the library of a server with the library of this program: see [lua.LibraryState].
type LibraryState = lua.LibraryState

// States of a Library.
const (
	LibraryAbsent  = lua.LibraryAbsent  // the server has no library
	LibraryCurrent = lua.LibraryCurrent // the same functions as ours; its release may have another name
	LibraryOlder   = lua.LibraryOlder   // a library of duestream, of an older release
	LibraryNewer   = lua.LibraryNewer   // a library of duestream, of a newer release
	LibraryOther   = lua.LibraryOther   // a library of duestream, of a release that cannot be compared
	LibraryForeign = lua.LibraryForeign // another program's library of the same name
)

// Functions lists the functions of the library, with their keys and arguments.
func Functions() []Function { return lua.Functions() }

// FunctionsLibrary returns the text of the library for FUNCTION LOAD. LoadFunctions later compares the release, a
// version like v1.2.3. A program without a version passes "": then every library of duestream that differs is replaced.
func FunctionsLibrary(release string) string { return lua.FunctionsLibrary(release) }

// FunctionsSource returns a hash of the code in the library of this program.
func FunctionsSource() string { return lua.FunctionsSource() }

// ShowFunctions returns the state of the library on every server: one, or all nodes of a cluster with their replicas.
// If a server returns an error, its row holds the error.
func (a *Admin) ShowFunctions(ctx context.Context, release string) []Library {
	return lua.Libraries(ctx, a.redis.Client, release)
}

// LoadFunctions loads the library on the server, or on every master of a cluster. Replicas get it by replication, and
// it is saved with the data. The call may be repeated, and many clients may make it at once. If the server has the same
// library, nothing changes. A library of duestream that is not newer is replaced atomically. If any server has a newer
// or a foreign library, the call returns ErrNewerFunctions or ErrForeignFunctions and changes no server, unless force
// is set. Any other error is that of a single server, and does not stop the call on the other servers. Each error is
// also in the row of its server.
func (a *Admin) LoadFunctions(ctx context.Context, release string, force bool) ([]Library, error) {
	return lua.LoadLibrary(ctx, a.redis.Client, release, force)
}

// DeleteFunctions deletes the library on every master. It deletes a library of another program only if force is set.
// The errors are those of LoadFunctions.
func (a *Admin) DeleteFunctions(ctx context.Context, release string, force bool) ([]Library, error) {
	return lua.DeleteLibrary(ctx, a.redis.Client, release, force)
}
