package doctor

import (
	"errors"
	"fmt"

	"github.com/duestream/duestream/lua"
)

// functions compares the library of functions on all masters with that of this program. If no server has a library,
// none is missing.
func (l *look) functions() {
	for _, one := range judgeLibraries(lua.Libraries(l.ctx, l.c, l.Release), l.missing) {
		l.add(l.serverFinding(one.check, 1, one.found))
	}
	l.fail(l.ctx.Err())
}

// libraryFinding is a defect of the library on one server.
type libraryFinding struct {
	check *Check
	found string
}

// judgeLibraries returns the defects of the libraries on all servers, one row for each server. It calls missing for
// each server whose library could not be read.
func judgeLibraries(rows []lua.Library, missing func(what string, err error)) (findings []libraryFinding) {
	loaded := false // whether any server has a library of duestream
	for _, l := range rows {
		loaded = loaded || l.Err == nil && l.State != lua.LibraryAbsent && l.State != lua.LibraryForeign
	}
	for _, l := range rows {
		switch {
		case errors.Is(l.Err, lua.ErrNoFunctions):
		case l.Err != nil:
			missing("functions of "+l.Server, l.Err)
		case l.Role != "master":
		case l.State == lua.LibraryOlder || l.State == lua.LibraryOther:
			findings = append(findings, libraryFinding{oldFunctions,
				fmt.Sprintf("%s has release %s, source %s; this program %s", l.Server, l.Release, l.Source,
					lua.FunctionsSource())})
		case l.State == lua.LibraryAbsent && loaded:
			findings = append(findings, libraryFinding{missingFunctions, l.Server + " has none, others have"})
		}
	}
	return findings
}
