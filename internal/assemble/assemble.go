// Package assemble builds the Lua that the server runs from the Lua that people edit: the text of each script, and the
// library of functions. Command generate writes the results into package lua, where `git diff` shows them. No program
// of a user contains this package.
//
// People edit lua/*.lua, one script each; lua/lib/*.lua, functions that scripts share; and lua/functions/*.lua, which
// only the library of functions has. The built text of a script differs from its file as follows:
//   - the functions of lua/lib that it can reach stand before it;
//   - a rare function (see rareFunctions) declares the functions and constants that only rare functions need, on its
//     first call;
//   - if it has the comment restComment, functions that only the lines below this comment need are declared there, so
//     that a call that returns earlier does not pay for them;
//   - lines that are only a comment are left out, so that each server keeps less text;
//   - before its first write, it ends with an error if its user may not run all commands that follow;
//   - its errors name a key of the wrong type, or the command that its user may not run.
//
// Invariants:
//   - the files in package lua are those that the sources give (TestGeneratedFilesAreUpToDate);
//   - a header that is out of order is refused (TestHeaderParserRefusesDisorder);
//   - a library file means the same in a script and in the functions library (TestLibraryFilesShareNoName).
package assemble

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// Sources are the Lua files that people edit.
type Sources struct {
	files map[string]*source // by path below lua: "ack.lua", "lib/base.lua", "functions/release.lua"
}

type source struct {
	path   string
	text   string
	header Header // empty for the files of lib and for publishFile, which have no header
}

// publishFile is the part of the functions library that publishes each function.
const publishFile = "functions/publish.lua"

// Read reads the sources. dir is the folder of package lua. Read refuses a script without a correct header, and a
// script that uses a file of lib that does not exist.
func Read(dir fs.FS) (*Sources, error) {
	s := &Sources{files: map[string]*source{}}
	for _, pattern := range []string{"*.lua", "lib/*.lua", "functions/*.lua"} {
		paths, err := fs.Glob(dir, pattern)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			text, err := fs.ReadFile(dir, path)
			if err != nil {
				return nil, err
			}
			s.files[path] = &source{path: path, text: string(text)}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(s.files)) {
		file := s.files[path]
		if strings.HasPrefix(path, "lib/") || path == publishFile {
			continue
		}
		header, err := ParseHeader(file.name(), file.text)
		if err != nil {
			return nil, fmt.Errorf("lua/%s: %w", path, err)
		}
		for _, lib := range header.Uses {
			if s.files[libPath(lib)] == nil {
				return nil, fmt.Errorf("lua/%s uses %s, and there is no lua/%s", path, lib, libPath(lib))
			}
		}
		file.header = header
	}
	return s, nil
}

func libPath(lib string) string { return "lib/" + lib + ".lua" }

// name returns the name of a script, or of a function.
func (f *source) name() string { return strings.TrimSuffix(path.Base(f.path), ".lua") }

// Scripts returns the names of all scripts, in order.
func (s *Sources) Scripts() (names []string) {
	for path, file := range s.files {
		if !strings.Contains(path, "/") {
			names = append(names, file.name())
		}
	}
	slices.Sort(names)
	return names
}

// Header returns the header of a script.
func (s *Sources) Header(script string) (Header, error) {
	file, err := s.script(script)
	if err != nil {
		return Header{}, err
	}
	return file.header, nil
}

func (s *Sources) script(name string) (*source, error) {
	file := s.files[name+".lua"]
	if file == nil {
		return nil, fmt.Errorf("there is no lua/%s.lua", name)
	}
	return file, nil
}

// library returns the files of lib that a file uses, without comments.
func (s *Sources) library(file *source) string {
	var b strings.Builder
	for _, lib := range file.header.Uses {
		b.WriteString(withoutComments(s.files[libPath(lib)].text))
	}
	return b.String()
}

// columns is the greatest length of a line that this package writes itself. Lines that are copied may be longer.
const columns = 120

// folded returns Lua that begins with start, lists the parts with commas between them, and ends with end. A part that
// does not fit into the line begins a new one.
func folded(start string, parts []string, end string) string {
	text, length := start, len(start)
	for i, part := range parts {
		if i < len(parts)-1 {
			part += ","
		} else {
			part += end
		}
		switch {
		case i == 0:
		case length+len(" ")+len(part) <= columns:
			part = " " + part
		default:
			text += "\n"
			part, length = "  "+part, 0
		}
		text += part
		length += len(part)
	}
	return text + "\n"
}

// withoutComments drops empty lines, and lines that are only a comment.
func withoutComments(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if t := strings.TrimSpace(line); t != "" && !strings.HasPrefix(t, "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Generated returns the files that are generated, by their path below lua.
func (s *Sources) Generated() (map[string]string, error) {
	files := map[string]string{}
	for _, name := range s.Scripts() {
		text, err := s.Script(name)
		if err != nil {
			return nil, err
		}
		files["generated/"+name+".lua"] = scriptNotice(s.files[name+".lua"]) + text
	}
	library, err := s.FunctionsLibrary()
	if err != nil {
		return nil, err
	}
	files["generated/functions.lua"] = "-- " + notice(librarySources) + "\n" + library
	files["functions_generated.go"], err = s.functionsGo()
	return files, err
}

// librarySources are the files from which the library of functions is generated.
const librarySources = "lua/*.lua, lua/lib/*.lua and lua/functions/*.lua"

// scriptNotice returns the first line of a generated script. The server does not get it.
func scriptNotice(file *source) string {
	from := "lua/" + file.path
	if len(file.header.Uses) > 0 {
		from += ", lua/lib"
	}
	return "-- " + notice(from) + " Sent without this line.\n"
}

// notice says from which files a file is generated.
func notice(from string) string {
	return "Code generated by `go generate ./lua` from " + from + ". DO NOT EDIT."
}
