package assemble

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The library contains each function whole, and all files that it needs, each once.
func TestFunctionsAreTheirScripts(t *testing.T) {
	t.Parallel()
	s := readAll(t)
	text, err := s.FunctionsLibrary()
	if err != nil {
		t.Fatal(err)
	}
	functions, err := s.Functions()
	if err != nil {
		t.Fatal(err)
	}
	wantOnce := func(what, part string) {
		t.Helper()
		if n := strings.Count(text, part); n != 1 {
			t.Errorf("%d copies of %s", n, what)
		}
	}
	used := map[string]bool{publishFile: true}
	libs := s.functionLibs(functions)
	for _, f := range functions {
		used[f.File] = true
		file := s.files[f.File]
		before, after, found := cutAtFirstWrite(file.text)
		wantOnce("the text of "+f.Name, after)
		if found {
			wantOnce("the part before the first write of "+f.Name, before)
		}
		// A function has further keys exactly if its script writes a history.
		if (len(f.More) > 0) != file.header.History {
			t.Errorf("%s: further keys %v, writes a history: %t", f.Name, f.More, file.header.History)
		}
		if f.Does == "" || f.Returns == "" {
			t.Errorf("%s is said to do %q and to return %q", f.Name, f.Does, f.Returns)
		}
		// Scripts are tested with the files in the order of their headers, so the library must have the same order.
		last := -1
		for _, lib := range file.header.Uses {
			at := slices.Index(libs, lib)
			if at <= last {
				t.Errorf("%s needs its files in the order %v, the library has %v", f.Name, file.header.Uses, libs)
			}
			last = at
		}
		if m := regexp.MustCompile(`(?m)^local (?:function )?scripts\b`).FindString(file.text); m != "" {
			t.Errorf("%s hides the table of scripts: %s", f.File, m)
		}
	}
	for path := range s.files {
		if strings.HasPrefix(path, "functions/") && !used[path] {
			t.Errorf("%s is in no library", path)
		}
	}
	for _, lib := range libs {
		wantOnce(lib, s.files[libPath(lib)].text)
	}
	if n := strings.Count(text, releasePlace); n != 2 { // one in the comment at the top, one in the version function
		t.Errorf("%d places for the release, want 2", n)
	}
	wantOnce("the place for the protocol level", levelPlace)
}

// In a script a file sees only the files before it; in the library it sees all. A name used in two files would mean one
// thing in a script, and another in the library.
func TestLibraryFilesShareNoName(t *testing.T) {
	t.Parallel()
	s := readAll(t)
	functions, err := s.Functions()
	if err != nil {
		t.Fatal(err)
	}
	owner := map[string]string{}
	local := regexp.MustCompile(`(?m)^local (?:function (\w+)|([\w, ]+?) *(?:=|$))`)
	paths := []string{publishFile}
	for _, lib := range s.functionLibs(functions) {
		paths = append(paths, libPath(lib))
	}
	for _, path := range paths {
		for _, m := range local.FindAllStringSubmatch(s.files[path].text, -1) {
			for name := range strings.SplitSeq(m[1]+m[2], ", ") {
				if owner[name] != "" {
					t.Errorf("%s is in %s and in %s", name, owner[name], path)
				}
				owner[name] = path
			}
		}
	}
	if len(owner) < 40 || owner["digits"] == "" || owner["LOST"] == "" || owner["publish"] == "" {
		t.Errorf("names were not found: %v", slices.Sorted(maps.Keys(owner)))
	}
	const maxNames = 180 // some way below the 200 local names that Lua allows in one function
	if len(owner) > maxNames {
		t.Errorf("%d local names of the 200 that one Lua function may have", len(owner))
	}
}
