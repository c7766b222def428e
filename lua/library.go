package lua

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// Errors of the calls about the functions library, besides those of every call.
var (
	// ErrNoFunctions: the server does not know functions. It is older than Redis 7.0, or the in-process server of dev.
	ErrNoFunctions = errors.New("the server has no functions")
	// ErrForeignFunctions: the server has a library of this name that is not duestream's. Nothing was changed.
	ErrForeignFunctions = errors.New("there is a library called " + FunctionsName + " that is not duestream's")
	// ErrNewerFunctions: the server's library is of a newer release. Nothing was changed.
	ErrNewerFunctions = errors.New("the functions there are newer")
)

// LibraryState compares the library on a server with the one that this program would load.
type LibraryState string

// States of a library.
const (
	LibraryAbsent  LibraryState = "absent"
	LibraryCurrent LibraryState = "current" // its code is ours, whatever the name of its release is
	LibraryOlder   LibraryState = "older"
	LibraryNewer   LibraryState = "newer"
	LibraryOther   LibraryState = "other" // a library of duestream, but its release cannot be compared with ours
	LibraryForeign LibraryState = "foreign"
)

// Library describes the library on one server, and what was done to it.
type Library struct {
	Server  string `json:"server"` // its address
	Role    string `json:"role"`   // "master" or "replica"
	Product string `json:"product"`
	Version string `json:"version"`
	// State, Release, Source and Level describe the library that was found on the server.
	State   LibraryState `json:"state,omitempty"`
	Release string       `json:"release,omitempty"`
	Source  string       `json:"source,omitempty"`
	Level   int          `json:"level,omitempty"` // protocol level; 1 = the library does not tell its level
	Did     string       `json:"did,omitempty"`   // the change: "loaded", "replaced", "deleted"; "" = none
	Err     error        `json:"-"`               // why the library could not be read or changed

	node         rueidis.Client
	isReplicated bool // the server is a replica of a cluster, and gets the library from its master
}

// libraryPatience bounds the time for one server.
const libraryPatience = 5 * time.Second

// Libraries describes the library on each server: on the single one, or on every node of a cluster. An error is in the
// row of its server. It takes three round trips to each server.
func Libraries(ctx context.Context, c rueidis.Client, release string) []Library {
	var rows []Library
	for addr, node := range c.Nodes() {
		row := Library{Server: addr, node: node}
		row.Err = row.look(ctx, release)
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b Library) int { return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Server, b.Server)) })
	return rows
}

func (l *Library) look(ctx context.Context, release string) error {
	ctx, cancel := context.WithTimeout(ctx, libraryPatience)
	defer cancel()
	hello, err := l.node.Do(ctx, l.node.B().Arbitrary("HELLO").Build()).AsMap()
	if _, answered := rueidis.IsRedisErr(err); err != nil && !answered {
		return l.wrap("HELLO", err)
	}
	text := func(name string) string {
		m := hello[name]
		s, _ := m.ToString()
		return s
	}
	l.Role, l.Product, l.Version = text("role"), text("server"), text("version")
	// A replica outside a cluster must answer that it takes no writes.
	l.isReplicated = l.Role == "replica" && text("mode") == "cluster"
	list, err := l.node.Do(ctx, l.node.B().Arbitrary("FUNCTION", "LIST", "LIBRARYNAME", FunctionsName).Build()).ToArray()
	if err != nil {
		return l.wrap("FUNCTION LIST", err)
	}
	if len(list) == 0 {
		l.State = LibraryAbsent
		return nil
	}
	l.State = LibraryForeign
	if !hasFunction(list[0], versionFunction) {
		return nil
	}
	reply, err := l.node.Do(ctx, l.node.B().Arbitrary("FCALL", versionFunction, "0").Build()).ToMessage()
	if err := l.wrap("FCALL "+versionFunction, err); errors.Is(err, ErrDenied) || errors.Is(err, ErrUnavailable) {
		l.State = ""
		return err
	}
	// If the reply has another form, the function of that name is not ours, and the state stays foreign.
	if version, err := reply.AsStrMap(); err == nil && version["source"] != "" {
		l.Release, l.Source = version["release"], version["source"]
		l.Level = max(1, atoi(version["level"]))
		ours := Library{Release: cleanRelease(release), Source: FunctionsSource(), Level: Level}
		l.State = compareLibraries(*l, ours)
	}
	return nil
}

// hasFunction reports whether an element of FUNCTION LIST has a function.
func hasFunction(library rueidis.RedisMessage, name string) bool {
	fields, _ := library.AsMap()
	functions := fields["functions"]
	all, _ := functions.ToArray()
	return slices.ContainsFunc(all, func(f rueidis.RedisMessage) bool {
		fields, _ := f.AsMap()
		m := fields["name"]
		s, _ := m.ToString()
		return s == name
	})
}

var releaseNumbers = regexp.MustCompile(`^v?(\d+)\.(\d+)\.(\d+)`)

// atoi returns the number in a text, or 0.
func atoi(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}

// compareLibraries compares a library with ours: by source, then by level, then by the numbers of the release.
func compareLibraries(there, ours Library) LibraryState {
	if there.Source == ours.Source {
		return LibraryCurrent
	}
	theirs, own := []int{there.Level}, []int{ours.Level}
	numbers, ownNumbers := releaseNumbers.FindStringSubmatch(there.Release), releaseNumbers.FindStringSubmatch(ours.Release)
	if len(numbers) > 0 && len(ownNumbers) > 0 {
		for i := 1; i < len(numbers); i++ {
			theirs, own = append(theirs, atoi(numbers[i])), append(own, atoi(ownNumbers[i]))
		}
	}
	switch slices.Compare(theirs, own) {
	case -1:
		return LibraryOlder
	case 1:
		return LibraryNewer
	}
	return LibraryOther
}

// LoadLibrary loads the functions on every master; replicas get them from there. A current library stays. One of ours
// that is not newer is replaced. A newer or foreign one is replaced only with force; without force it is an error, and
// nothing is changed on any server. The error joins those of all servers that failed, while the others are done. Each
// error is in its row, too.
func LoadLibrary(ctx context.Context, c rueidis.Client, release string, force bool) ([]Library, error) {
	text := FunctionsLibrary(release)
	return changeLibraries(ctx, c, release, func(l *Library) (refused error) {
		switch {
		case force:
		case l.State == LibraryForeign:
			return ErrForeignFunctions
		case l.State == LibraryNewer:
			return fmt.Errorf("%w: release %s of level %d, and this program has level %d; force replaces them", ErrNewerFunctions,
				l.Release, l.Level, Level)
		}
		return nil
	}, func(ctx context.Context, l *Library) error {
		words, did := []string{"FUNCTION", "LOAD"}, "loaded"
		switch l.State {
		case LibraryCurrent:
			return nil
		case LibraryAbsent:
		default:
			words, did = append(words, "REPLACE"), "replaced"
		}
		err := l.change(ctx, did, append(words, text)...)
		if err != nil && l.State == LibraryAbsent && !errors.Is(err, ErrDenied) && l.look(ctx, release) == nil &&
			l.State == LibraryCurrent {
			return nil // another client loaded the same library at the same time
		}
		return err
	})
}

// DeleteLibrary deletes the functions on every master. A foreign library is deleted only with force. Errors are as in
// LoadLibrary.
func DeleteLibrary(ctx context.Context, c rueidis.Client, release string, force bool) ([]Library, error) {
	return changeLibraries(ctx, c, release, func(l *Library) error {
		if l.State == LibraryForeign && !force {
			return ErrForeignFunctions
		}
		return nil
	}, func(ctx context.Context, l *Library) error {
		if l.State == LibraryAbsent {
			return nil
		}
		return l.change(ctx, "deleted", "FUNCTION", "DELETE", FunctionsName)
	})
}

// changeLibraries looks at all servers, and changes them if refuse accepts each of them.
func changeLibraries(ctx context.Context, c rueidis.Client, release string, refuse func(*Library) error,
	change func(context.Context, *Library) error) ([]Library, error) {
	rows := slices.DeleteFunc(Libraries(ctx, c, release), func(l Library) bool { return l.isReplicated })
	if len(rows) == 0 {
		return nil, fmt.Errorf("functions: %w: no node is known", ErrUnavailable)
	}
	var refused error
	for i := range rows {
		if l := &rows[i]; l.Err == nil {
			if err := refuse(l); err != nil {
				l.Err = fmt.Errorf("%s: %w", l.Server, err)
				refused = errors.Join(refused, l.Err)
			}
		}
	}
	if refused != nil {
		return rows, refused
	}
	var failed error
	for i := range rows {
		l := &rows[i]
		if l.Err == nil {
			l.Err = change(ctx, l)
		}
		failed = errors.Join(failed, l.Err)
	}
	return rows, failed
}

func (l *Library) change(ctx context.Context, did string, words ...string) error {
	ctx, cancel := context.WithTimeout(ctx, libraryPatience)
	defer cancel()
	if err := l.node.Do(ctx, l.node.B().Arbitrary(words...).Build()).Error(); err != nil {
		return l.wrap(words[0]+" "+words[1], err)
	}
	l.Did = did
	return nil
}

// wrap classifies an error and names the server.
func (l *Library) wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	err = Classify(what, err)
	if errors.Is(err, ErrUnsupported) {
		return fmt.Errorf("%s: %w: %w", l.Server, ErrNoFunctions, err)
	}
	return fmt.Errorf("%s: %w", l.Server, err)
}
