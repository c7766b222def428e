package before

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"
	"testing"
)

// usesLine matches the line of a script that names the library files to put before it.
var usesLine = regexp.MustCompile(`(?m)^-- Uses: (.*)$`)

// Scripts returns the scripts of a release by name. Each is put after the library files that it uses, as a client
// does that has only the files (protocol.md, section 6).
func Scripts(t testing.TB, release string) map[string]string {
	t.Helper()
	root, err := output("", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		t.Fatal(err)
	}
	archive, err := output(root, "git", "archive", release, "lua")
	if err != nil {
		t.Fatalf("release %s is not in the history of this repository: run `git fetch --unshallow`, or clone it whole: %v", release,
			err)
	}
	scripts, err := scriptsIn(strings.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	return scripts
}

func scriptsIn(archive io.Reader) (map[string]string, error) {
	files := map[string]string{}
	for r := tar.NewReader(archive); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		var text bytes.Buffer
		if _, err := io.Copy(&text, r); err != nil {
			return nil, err
		}
		files[header.Name] = text.String()
	}
	scripts := map[string]string{}
	for name, text := range files {
		uses := usesLine.FindStringSubmatch(text)
		if path.Dir(name) != "lua" || path.Ext(name) != ".lua" || uses == nil {
			continue
		}
		var whole strings.Builder
		for lib := range strings.FieldsSeq(uses[1]) {
			part, there := files["lua/lib/"+lib+".lua"]
			if !there {
				return nil, fmt.Errorf("%s uses %s, which is not there", name, lib)
			}
			whole.WriteString(part)
		}
		scripts[strings.TrimSuffix(path.Base(name), ".lua")] = whole.String() + text
	}
	return scripts, nil
}
