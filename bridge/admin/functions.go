package admin

import (
	"context"

	"github.com/duestream/duestream/lua"
)

// This file holds the library of Redis Functions, by which clients in any language call the scripts: see docs/PROTOCOL.md,
// section 17.

// What the calls below return besides ErrDenied, ErrUnavailable, and ErrFull: a full server takes no library.
var (
	// ErrNoFunctions: the server has no functions: it is older than Redis 7.0, or the in-process one of dev.
	ErrNoFunctions = lua.ErrNoFunctions
	// ErrForeignFunctions: a library called duestream is there, and it is not ours. Nothing was changed.
	ErrForeignFunctions = lua.ErrForeignFunctions
	// ErrNewerFunctions: the library there is of a newer release. Nothing was changed.
	ErrNewerFunctions = lua.ErrNewerFunctions
)

// Function is one function of the library, with its keys and arguments.
//
//	type Function struct {
//		Name    string
//		Does    string
//		Keys    []string
//		More    []string
//		Later   []string
//		Args    []string
//		Each    []string // sent for every item, after Args
//		Returns string
//		// AllowOOM: a full server runs it. The only one without is schedule, so that a full server refuses it as a whole.
//		AllowOOM bool
//	}
type Function = lua.Function

// Library is what one server has of the library, and what was done there.
//
//	type Library struct {
//		Server  string // its address
//		Role    string // "master" or "replica"
//		Product string
//		Version string
//		// State, Release and Source are of what was found there.
//		State   LibraryState
//		Release string
//		Source  string
//		Level   int    // protocol level; 1 = it tells none
//		Did     string // "loaded", "replaced", "deleted"; "" = nothing
//		Err     error  // why it could not be looked at or changed
//	}
type Library = lua.Library

// LibraryState says how the library of a server compares with that of this program.
//
//	type LibraryState string
type LibraryState = lua.LibraryState

// States of a Library.
const (
	LibraryAbsent  = lua.LibraryAbsent  // there is none
	LibraryCurrent = lua.LibraryCurrent // it does the same as ours, whatever its release is called
	LibraryOlder   = lua.LibraryOlder   // ours, of an older release
	LibraryNewer   = lua.LibraryNewer   // ours, of a newer release
	LibraryOther   = lua.LibraryOther   // ours, of a release that cannot be compared
	LibraryForeign = lua.LibraryForeign // somebody else's of that name
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

// LoadFunctions loads the library on the server, or on every master of a cluster; replicas get it by replication, and it is
// saved with the data. It may be repeated, and called by many at once: where the same library is, nothing is done; one of ours
// that is not newer is replaced, in one step; of somebody else's, or a newer one, the call returns ErrForeignFunctions or
// ErrNewerFunctions and changes nothing on any server, unless force. Other errors are those of single servers, with the rest
// done; each is in its row, too.
func (a *Admin) LoadFunctions(ctx context.Context, release string, force bool) ([]Library, error) {
	return lua.LoadLibrary(ctx, a.redis.Client, release, force)
}

// DeleteFunctions deletes the library everywhere; one that is not ours only with force. Errors are as of LoadFunctions.
func (a *Admin) DeleteFunctions(ctx context.Context, release string, force bool) ([]Library, error) {
	return lua.DeleteLibrary(ctx, a.redis.Client, release, force)
}
