package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// write writes files below a new directory.
func write(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestASoundSiteHasNoProblems(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{
		"index.html": `<meta http-equiv="refresh" content="0; url=v1/"><a href="v1/docs/a.html#one">a</a>`,
		"v1/index.html": `<link rel="stylesheet" href="/base/v1/style.css"><a href="https://redis.io">elsewhere</a>
			<a href="docs/">a directory</a><a href="#here">here</a><p id="here">`,
		"v1/docs/index.html": `<img src="../p.webp" srcset="../p.webp 1x, ../p.webp 2x"><a href="a.html?q=1#one">a</a>`,
		"v1/docs/a.html":     `<h1 id="one">One</h1><a href="/base/">home</a><img src="data:image/png;base64,AA==">`,
		"v1/p.webp":          "picture",
		"v1/style.css":       `body { background: url("p.webp") }`,
	})
	found, err := check(dir, "/base/")
	if err != nil || len(found.problems) != 0 || found.pages != 4 || found.links < 12 {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestEachKindOfProblemIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"page":          {`<a href="no.html">`, "index.html: no.html does not exist"},
		"absolute page": {`<a href="/no.html">`, "index.html: /no.html does not exist"},
		"anchor":        {`<a href="#no">`, "index.html: #no: the page has no element with this ID"},
		"other anchor":  {`<a href="a.html#no">`, "index.html: a.html#no: the page has no element with this ID"},
		"script": {`<script src="https://cdn.example/a.js">`,
			"index.html: loads https://cdn.example/a.js from another host"},
		"without a scheme": {`<link rel="stylesheet" href="//cdn.example/a.css">`,
			"index.html: loads //cdn.example/a.css from another host"},
		"font": {`<link rel="preload" as="font" href="https://fonts.example/a.woff2">`,
			"index.html: loads https://fonts.example/a.woff2 from another host"},
		"picture": {`<img src="no.webp">`, "index.html: no.webp does not exist"},
		"outside": {`<a href="../other/">`, "index.html: ../other/ leaves the site"},
		"refresh": {`<meta http-equiv="refresh" content="0; url=v9/">`, "index.html: v9/ does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := write(t, map[string]string{"index.html": c.text, "a.html": "", "b.css": ""})
			found, err := check(dir, "/")
			if err != nil || !slices.Equal(found.problems, []string{c.want}) {
				t.Errorf("%q, %v, want %q", found.problems, err, c.want)
			}
		})
	}
}

func TestStylesLoadNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{
		"index.html": "",
		"a.css":      `@import "https://cdn.example/b.css"; @font-face { src: url(no.woff2) } p { fill: url(data:x) }`,
	})
	found, err := check(dir, "/")
	want := []string{"a.css: loads https://cdn.example/b.css from another host", "a.css: no.woff2 does not exist"}
	if err != nil || !slices.Equal(found.problems, want) {
		t.Errorf("%q, %v, want %q", found.problems, err, want)
	}
}

func TestLinksStayBelowTheBase(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{"index.html": `<a href="/v1/a.html">`, "v1/a.html": ""})
	found, err := check(dir, "/base/")
	if want := []string{"index.html: /v1/a.html is not below /base/"}; err != nil || !slices.Equal(found.problems, want) {
		t.Errorf("%q, %v, want %q", found.problems, err, want)
	}
}

func TestADirectoryWithoutPagesIsAnError(t *testing.T) {
	t.Parallel()
	if found, err := check(t.TempDir(), "/"); err == nil {
		t.Errorf("%+v and no error", found)
	}
}
