package lua

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// libraryOf returns a library of ours, as another release would have it.
func libraryOf(release, source string) string {
	return libraryOfLevel(release, source, fmt.Sprintf(", 'level', '%d'", Level))
}

// libraryOfLevel is libraryOf with the text that tells the level; "" = the library tells none.
func libraryOfLevel(release, source, level string) string {
	return fmt.Sprintf("#!lua name=duestream\nredis.register_function{function_name='duestream_version', flags={'no-writes'}, "+
		"callback=function() return {'protocol', '1', 'release', '%s', 'source', '%s'%s} end}\n", release, source, level)
}

const foreignLibrary = "#!lua name=duestream\nredis.register_function('another', function() return 1 end)\n"

// For each library that a server may have, the table says what load and delete do, without force and with it. The calls
// are made by release v1.2.3.
func TestLibraryIsLoadedWhereItBelongs(t *testing.T) {
	b := newTestQueue(t, redistest.Own(t))
	for _, c := range []struct {
		name, there      string
		state            LibraryState
		did              string // what load does
		refused          error  // or why load is refused
		deletion, forced string // what delete does, and load with force
	}{
		{"nothing", "", LibraryAbsent, "loaded", nil, "", "loaded"},
		{"ours", FunctionsLibrary("v1.2.3"), LibraryCurrent, "", nil, "deleted", ""},
		{"ours, called otherwise", FunctionsLibrary("v9.9.9"), LibraryCurrent, "", nil, "deleted", ""},
		{"older", libraryOf("v1.2.2", "abc"), LibraryOlder, "replaced", nil, "deleted", "replaced"},
		{"older by number", libraryOf("v1.1.10", "abc"), LibraryOlder, "replaced", nil, "deleted", "replaced"},
		{"newer", libraryOf("v1.10.0", "abc"), LibraryNewer, "", ErrNewerFunctions, "deleted", "replaced"},
		{"of a build between releases", libraryOf("v1.2.3-4-gabc", "abc"), LibraryOther, "replaced", nil, "deleted", "replaced"},
		{"of no release", libraryOf("devel", "abc"), LibraryOther, "replaced", nil, "deleted", "replaced"},
		{"of a release that told no level", libraryOfLevel("v1.10.0", "abc", ""), LibraryOlder, "replaced", nil, "deleted", "replaced"},
		{"of a level to come", libraryOfLevel("devel", "abc", ", 'level', '99'"), LibraryNewer, "", ErrNewerFunctions, "deleted",
			"replaced"},
		{"somebody else's", foreignLibrary, LibraryForeign, "", ErrForeignFunctions, "", "replaced"},
		{"somebody else's with our version", strings.Replace(foreignLibrary, "'another'", "'duestream_version'", 1),
			LibraryForeign, "", ErrForeignFunctions, "", "replaced"},
	} {
		put := func() {
			t.Helper()
			b.do("FUNCTION", "FLUSH")
			if c.there != "" {
				b.do("FUNCTION", "LOAD", c.there)
			}
		}
		one := func(rows []Library) Library {
			t.Helper()
			if len(rows) != 1 || rows[0].Server != b.s.Addr() || rows[0].Role != "master" || rows[0].Version != b.s.Version() {
				t.Fatalf("%s: %+v", c.name, rows)
			}
			return rows[0]
		}
		put()
		row := one(Libraries(b.ctx, b.c, "v1.2.3"))
		redistest.Want(b, c.name+": state", row.State, c.state)
		redistest.Want(b, c.name+": error of the look", row.Err, nil)
		before := b.text("FUNCTION", "DUMP")

		rows, err := LoadLibrary(b.ctx, b.c, "v1.2.3", false)
		row = one(rows)
		redistest.Want(b, c.name+": what load did", row.Did, c.did)
		redistest.Want(b, c.name+": state that load found", row.State, c.state)
		if !errors.Is(err, c.refused) || c.refused == nil && err != nil || c.refused != nil && (!errors.Is(row.Err, c.refused) ||
			Temporary(err)) {
			t.Errorf("%s: load: %v, and of the server %v", c.name, err, row.Err)
		}
		if after := b.text("FUNCTION", "DUMP"); (after == before) != (c.did == "") {
			t.Errorf("%s: load says that it did %q", c.name, c.did)
		}
		if c.did != "" {
			redistest.Want(b, c.name+": state after load", one(Libraries(b.ctx, b.c, "v1.2.3")).State, LibraryCurrent)
		}

		put()
		rows, err = LoadLibrary(b.ctx, b.c, "v1.2.3", true)
		redistest.Want(b, c.name+": what load does with force", one(rows).Did, c.forced)
		redistest.Want(b, c.name+": error of that", err, nil)
		redistest.Want(b, c.name+": state after that", one(Libraries(b.ctx, b.c, "v1.2.3")).State, LibraryCurrent)

		put()
		rows, err = DeleteLibrary(b.ctx, b.c, "v1.2.3", false)
		redistest.Want(b, c.name+": what delete does", one(rows).Did, c.deletion)
		redistest.Want(b, c.name+": delete is refused", errors.Is(err, ErrForeignFunctions), c.state == LibraryForeign)
		_, err = DeleteLibrary(b.ctx, b.c, "v1.2.3", true)
		redistest.Want(b, c.name+": error of delete with force", err, nil)
		redistest.Want(b, c.name+": state after that", one(Libraries(b.ctx, b.c, "v1.2.3")).State, LibraryAbsent)
	}
}

// Programs may load the library when they start, many at once.
func TestLibraryIsLoadedByManyAtOnce(t *testing.T) {
	b := newTestQueue(t, redistest.Own(t))
	var all sync.WaitGroup
	for range 20 {
		own := b.again()
		all.Go(func() {
			if _, err := LoadLibrary(own.ctx, own.c, "v1.2.3", false); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	redistest.Want(b, "state", Libraries(b.ctx, b.c, "v1.2.3")[0].State, LibraryCurrent)
}

// Errors are classified, and name the server.
func TestLibraryErrors(t *testing.T) {
	own := redistest.Own(t)
	b := newTestQueue(t, own)
	fails := func(what string, kind, other error, f func() ([]Library, error)) {
		t.Helper()
		rows, err := f()
		if !errors.Is(err, kind) || other != nil && !errors.Is(err, other) || len(rows) != 1 || rows[0].Err == nil ||
			!strings.Contains(err.Error(), rows[0].Server) {
			t.Errorf("%s: %v; %+v", what, err, rows)
		}
	}
	load := func() ([]Library, error) { return LoadLibrary(b.ctx, b.c, "", false) }

	b.do("CONFIG", "SET", "maxmemory", "1")
	fails("a full server", ErrFull, nil, load)
	b.do("CONFIG", "SET", "maxmemory", "0")
	b.do("FUNCTION", "LOAD", "#!lua name=other\nredis.register_function('duestream_ack', function() return 1 end)\n")
	if rows, err := load(); err == nil || !strings.Contains(err.Error(), "duestream_ack") || rows[0].Did != "" {
		t.Errorf("a name that is taken: %v %+v", err, rows)
	}
	b.do("FUNCTION", "FLUSH")
	for _, allowed := range []string{"+hello", "+function|list"} {
		b.do("ACL", "SETUSER", "default", "-@all", "+acl", allowed)
		fails("a user who may run "+allowed, ErrDenied, nil, load)
		b.do("ACL", "SETUSER", "default", "+@all")
	}
	b.do("REPLICAOF", "127.0.0.1", "1")
	fails("a replica", ErrUnavailable, nil, load)

	b = inProcess(t)
	fails("the in-process server", ErrNoFunctions, ErrUnsupported, load)
}
