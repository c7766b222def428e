package layout

import (
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// columns is the greatest length of a line; a tab counts as four.
const columns = 130

// Lines fit on a screen beside another file. Exempt are rows of tables of string literals, raw strings over several
// lines, and declarations quoted in comments.
func TestLinesAreNotTooLong(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("git", "-C", "../..", "ls-files", "*.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(out)) {
		if strings.Contains(name, "testdata/") {
			continue
		}
		source, err := os.ReadFile(filepath.Join("../..", name))
		if os.IsNotExist(err) {
			continue // deleted, but not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		exempt := stringLines(source)
		for i, line := range strings.Split(string(source), "\n") {
			n := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
			if n > columns && !exempt[i+1] && !strings.HasPrefix(line, "//\t") {
				t.Errorf("%s:%d has %d columns, more than %d", name, i+1, n, columns)
			}
		}
	}
}

// stringLines returns the numbers of the lines that hold a string literal, or a part of a raw string, but no keyword
// and no assignment.
func stringLines(source []byte) map[int]bool {
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, 0)
	lines, others := map[int]bool{}, map[int]int{}
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			break
		}
		line := file.Line(pos)
		if tok == token.STRING {
			for at := range strings.Count(text, "\n") + 1 {
				lines[line+at] = true
			}
		} else if tok.IsKeyword() || tok == token.ASSIGN || tok == token.DEFINE {
			others[line]++
		}
	}
	for line := range others {
		delete(lines, line)
	}
	return lines
}
