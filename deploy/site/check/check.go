package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/html"
)

// report is what was found in a site.
type report struct {
	pages, links int
	problems     []string
}

// page is what one HTML file has.
type page struct {
	file  string // relative to the site, with slashes
	ids   map[string]bool
	links []link
}

// link is a reference of a page to another file.
type link struct {
	to    string
	loads bool // the browser loads it with the page: a script, a style, a font or a picture
}

// check reads all pages of the site in dir. base is the path of the site on its host.
func check(dir, base string) (report, error) {
	var found report
	pages := map[string]*page{}
	files := map[string]bool{}
	var styles []string
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		short, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		short = filepath.ToSlash(short)
		files[short] = true
		switch path.Ext(short) {
		case ".html":
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			pages[short], err = parse(short, text)
			return err
		case ".css":
			styles = append(styles, short)
		}
		return nil
	})
	if err != nil {
		return found, err
	}
	if len(pages) == 0 {
		return found, fmt.Errorf("%s has no pages: run `make site` before", dir)
	}
	s := site{base: base, files: files, pages: pages}
	for _, p := range pages {
		found.pages++
		for _, l := range p.links {
			found.links++
			if problem := s.follow(p.file, l); problem != "" {
				found.problems = append(found.problems, fmt.Sprintf("%s: %s", p.file, problem))
			}
		}
	}
	for _, style := range styles {
		text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(style)))
		if err != nil {
			return found, err
		}
		for _, m := range inStyle.FindAllSubmatch(text, -1) {
			found.links++
			l := link{to: string(bytes.Join(m[1:], nil)), loads: true}
			if problem := s.follow(style, l); problem != "" {
				found.problems = append(found.problems, fmt.Sprintf("%s: %s", style, problem))
			}
		}
	}
	slices.Sort(found.problems)
	return found, nil
}

// inStyle matches the addresses in a style sheet.
var inStyle = regexp.MustCompile(`url\(\s*["']?([^"')]+)["']?\s*\)|@import\s+["']([^"']+)["']`)

// loading lists the elements whose address the browser loads with the page.
var loading = []string{"script", "img", "iframe", "source", "video", "audio", "embed", "object", "image", "use"}

// linksOfHead lists the values of <link rel> that load nothing.
var linksOfHead = []string{"canonical", "alternate", "next", "prev"}

// parse reads the IDs and the links of a page.
func parse(file string, text []byte) (*page, error) {
	p := &page{file: file, ids: map[string]bool{}}
	for z := html.NewTokenizer(bytes.NewReader(text)); ; {
		switch z.Next() {
		case html.ErrorToken:
			return p, nil
		case html.StartTagToken, html.SelfClosingTagToken:
			token := z.Token()
			attributes := map[string]string{}
			for _, a := range token.Attr {
				attributes[a.Key] = a.Val
			}
			p.add(token.Data, attributes)
		}
	}
}

func (p *page) add(element string, attributes map[string]string) {
	if id := attributes["id"]; id != "" {
		p.ids[id] = true
	}
	if name := attributes["name"]; name != "" && element == "a" {
		p.ids[name] = true
	}
	loads := slices.Contains(loading, element) ||
		element == "link" && !slices.Contains(linksOfHead, attributes["rel"])
	for _, key := range []string{"href", "src", "poster", "data", "xlink:href"} {
		if to, ok := attributes[key]; ok && (key != "data" || element == "object") {
			p.links = append(p.links, link{to, loads})
		}
	}
	for candidate := range strings.SplitSeq(attributes["srcset"], ",") {
		if to, _, _ := strings.Cut(strings.TrimSpace(candidate), " "); to != "" {
			p.links = append(p.links, link{to, true})
		}
	}
	_, to, ok := strings.Cut(attributes["content"], "url=")
	if ok && strings.EqualFold(attributes["http-equiv"], "refresh") {
		p.links = append(p.links, link{to, false})
	}
}

// site is all files of a site.
type site struct {
	base  string
	files map[string]bool
	pages map[string]*page
}

// follow returns what is wrong with a link of a file; "" = nothing.
func (s site) follow(from string, l link) string {
	to, err := url.Parse(l.to)
	if err != nil {
		return fmt.Sprintf("%q is no address", l.to)
	}
	if to.Scheme == "data" {
		return ""
	}
	if to.Scheme != "" || to.Host != "" {
		if l.loads {
			return fmt.Sprintf("loads %s from another host", l.to)
		}
		return ""
	}
	target := from
	switch {
	case strings.HasPrefix(to.Path, "/"):
		inside, ok := strings.CutPrefix(to.Path, s.base)
		if !ok {
			return fmt.Sprintf("%s is not below %s", l.to, s.base)
		}
		target = inside
	case to.Path != "":
		target = path.Join(path.Dir(from), to.Path)
		if strings.HasPrefix(target, "..") {
			return fmt.Sprintf("%s leaves the site", l.to)
		}
	}
	if to.Path != "" && (strings.HasSuffix(to.Path, "/") || target == "." || s.files[path.Join(target, "index.html")]) {
		target = path.Join(target, "index.html")
	}
	if !s.files[target] {
		return fmt.Sprintf("%s does not exist", l.to)
	}
	if to.Fragment != "" && !strings.HasPrefix(to.Fragment, ":~:") {
		if p, ok := s.pages[target]; ok && !p.ids[to.Fragment] {
			return fmt.Sprintf("%s: the page has no element with this ID", l.to)
		}
	}
	return ""
}
