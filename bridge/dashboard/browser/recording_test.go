package browser

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// recording is a copy of pages of a dashboard as files that need no server.
type recording struct {
	base     string // address of the dashboard
	client   *http.Client
	private  []string // texts that no page may hold
	server   string   // host and port of the Redis, which the pages show by another name
	searched string   // address of the search to which the search box leads; "" = none

	pages map[string]*recorded // by address, as canonical returns it
	order []string             // addresses of pages, as they were found
	count map[string]int       // recorded pages by path
	files map[string][]byte    // assets, by path
}

// recorded is a page.
type recorded struct {
	file string
	tree *html.Node
	at   time.Time
}

// mostOf limits the recorded pages of a path. A link to another page is shown as text. A search is recorded by add
// alone.
var mostOf = map[string]int{"": 1, "queue": 60, "message": 60, "dead-letter": 8, "search": 0}

// mostOfOthers is the limit for a path without a row in mostOf.
const mostOfOthers = 6

// skipped are parameters for which no second page is recorded: other orders and further pages of a list.
var skipped = []string{"after", "before", "cursor", "sort", "desc", "do", "back", "next"}

var (
	//go:embed testdata/demo.js
	demoScript []byte
	//go:embed testdata/demo.css
	demoStyle []byte
)

func newRecording(base, server string, client *http.Client) *recording {
	return &recording{base: base, server: server, client: client, pages: map[string]*recorded{}, count: map[string]int{},
		files:   map[string][]byte{"assets/demo.js": demoScript, "assets/demo.css": demoStyle},
		private: privateTexts(base)}
}

// privateTexts are names of this machine.
func privateTexts(base string) []string {
	texts := []string{base, "127.0.0.1", "localhost", os.TempDir()}
	if host, err := os.Hostname(); err == nil {
		texts = append(texts, host)
	}
	if home, err := os.UserHomeDir(); err == nil && len(home) > 1 {
		texts = append(texts, home)
	}
	return texts
}

// public returns the text of a page without the names of this machine. A name that is still there is an error.
func (r *recording) public(text string) (string, error) {
	text = strings.ReplaceAll(text, r.server, "redis.shop.example:6379")
	if host, err := os.Hostname(); err == nil {
		text = regexp.MustCompile(regexp.QuoteMeta(host)+`, process \d+`).ReplaceAllString(text, "shop-1, process 12")
	}
	for _, private := range r.private {
		word := regexp.MustCompile(`(?:^|[^\w-])` + regexp.QuoteMeta(private) + `(?:$|[^\w-])`)
		if at := word.FindStringIndex(text); at != nil {
			return "", fmt.Errorf("holds %q: …%s…", private, text[max(0, at[0]-80):min(len(text), at[1]+80)])
		}
	}
	return text, nil
}

// canonical returns a relative address with sorted parameters, and its path. ok is false if no page is recorded for it.
func canonical(address string) (key, at string, ok bool) {
	to, err := url.Parse(address)
	if err != nil || to.IsAbs() || to.Host != "" || strings.HasPrefix(to.Path, "/") {
		return "", "", false
	}
	at = strings.TrimPrefix(to.Path, "./")
	query := to.Query()
	for name := range query {
		if slices.Contains(skipped, name) {
			return "", "", false
		}
	}
	if len(query) > 0 {
		return at + "?" + query.Encode(), at, true
	}
	return at, at, true
}

var unfit = regexp.MustCompile(`[^a-z0-9]+`)

// fileOf returns the name of the file of a page.
func (r *recording) fileOf(key string) string {
	if key == "" {
		return "index.html"
	}
	text, err := url.QueryUnescape(key)
	if err != nil {
		text = key
	}
	name := strings.Trim(unfit.ReplaceAllString(strings.ToLower(text), "-"), "-")
	for i := 1; ; i++ {
		file := name + ".html"
		if i > 1 {
			file = name + "-" + strconv.Itoa(i) + ".html"
		}
		if !slices.ContainsFunc(r.order, func(key string) bool { return r.pages[key].file == file }) {
			return file
		}
	}
}

// crawl records pages, and the pages to which recorded pages lead, within the limits.
func (r *recording) crawl(addresses ...string) error {
	for _, key := range r.order {
		addresses = append(addresses, links(r.pages[key].tree)...)
	}
	for len(addresses) > 0 {
		address := addresses[0]
		addresses = addresses[1:]
		address, _, _ = strings.Cut(address, "#")
		key, at, ok := canonical(address)
		if limit, special := mostOf[at]; !ok || r.pages[key] != nil || r.count[at] >= limit && special ||
			r.count[at] >= mostOfOthers && !special || strings.HasPrefix(at, "assets/") {
			continue
		}
		answer, err := r.client.Get(r.base + address)
		if err != nil {
			return err
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil {
			return err
		}
		if answer.StatusCode != http.StatusOK || !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/html") ||
			answer.Header.Get("Content-Disposition") != "" {
			continue
		}
		if err := r.add(address, string(text)); err != nil {
			return err
		}
		addresses = append(addresses, links(r.pages[key].tree)...)
	}
	return nil
}

// add records a page whose text is known.
func (r *recording) add(address, text string) error {
	tree, err := html.Parse(strings.NewReader(text))
	if err != nil {
		return err
	}
	key, at, ok := canonical(address)
	if !ok {
		return fmt.Errorf("%s is no page of the recording", address)
	}
	page := &recorded{tree: tree, at: time.Now()}
	if old := r.pages[key]; old != nil {
		page.file = old.file
	} else {
		page.file = r.fileOf(key)
		r.order = append(r.order, key)
		r.count[at]++
	}
	r.pages[key] = page
	return nil
}

// links returns the addresses of the links of a page, in order.
func links(tree *html.Node) (found []string) {
	for n := range tree.Descendants() {
		if n.DataAtom == atom.A {
			if to, ok := get(n, "href"); ok {
				found = append(found, to)
			}
		}
	}
	return found
}

// write writes the files, and returns how many there are.
func (r *recording) write(dir string) (int, error) {
	for _, key := range r.order {
		if err := r.rewrite(r.pages[key]); err != nil {
			return 0, err
		}
	}
	for _, page := range r.pages {
		var text bytes.Buffer
		if err := html.Render(&text, page.tree); err != nil {
			return 0, err
		}
		shown, err := r.public(text.String())
		if err != nil {
			return 0, fmt.Errorf("%s %w", page.file, err)
		}
		r.files[page.file] = []byte(shown)
	}
	if err := os.RemoveAll(dir); err != nil {
		return 0, err
	}
	for name, text := range r.files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return 0, err
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return 0, err
		}
	}
	return len(r.files), nil
}

// rewrite makes a page fit for a host of files: links lead to files, forms are disabled, and time stands still.
func (r *recording) rewrite(page *recorded) error {
	for n := range page.tree.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		switch n.DataAtom {
		case atom.Html:
			set(n, "data-recorded", strconv.FormatInt(page.at.UnixMilli(), 10))
		case atom.Body:
			remove(n, "data-live")
		case atom.Head:
			n.InsertBefore(element(`<script src="assets/demo.js"></script>`, atom.Head), n.FirstChild)
			n.AppendChild(element(`<link rel="stylesheet" href="assets/demo.css">`, atom.Head))
		case atom.Section:
			remove(n, "data-search") // the address from which hits come
		case atom.Main:
			n.InsertBefore(element(demoBanner, atom.Main), n.FirstChild)
		case atom.A:
			r.rewriteLink(n)
		case atom.Form:
			if method, _ := get(n, "method"); method != "dialog" {
				remove(n, "action")
			}
		case atom.Input, atom.Select, atom.Textarea, atom.Button:
			disable(n)
		}
		for _, name := range []string{"src", "href"} {
			if to, ok := get(n, name); ok && strings.HasPrefix(to, "assets/") && r.files[to] == nil {
				file, err := r.asset(to)
				if err != nil {
					return err
				}
				set(n, name, file)
			}
		}
	}
	return nil
}

// demoBanner says what a recorded page is. The documents lie beside the recording.
const demoBanner = `<p class="banner warn" role="note">This is a recording of the dashboard of a small shop. Its ` +
	`forms are disabled, and its figures stand still. Try the living one with <code>duestream dev</code>, or ` +
	`<a href="../docs/guides/dashboard.html">read about the dashboard</a>.</p>`

func (r *recording) rewriteLink(n *html.Node) {
	to, ok := get(n, "href")
	if !ok || strings.HasPrefix(to, "#") || strings.HasPrefix(to, "../docs/") || strings.Contains(to, "://") {
		return
	}
	address, fragment, _ := strings.Cut(to, "#")
	key, at, ok := canonical(address)
	if at == "search" && address == "search" { // the empty form is of no use
		key, _, ok = canonical(r.searched)
	}
	if target := r.pages[key]; ok && target != nil {
		if fragment != "" && hasID(target.tree, fragment) {
			fragment = "#" + fragment
		} else {
			fragment = ""
		}
		set(n, "href", target.file+fragment)
		return
	}
	remove(n, "href")
	set(n, "aria-disabled", "true")
	set(n, "title", "This page is not part of the recording.")
}

// disable disables a control. Buttons that only show or copy a part of the page keep working.
func disable(n *html.Node) {
	for _, name := range []string{"data-opens", "data-closes", "data-copies"} {
		if _, ok := get(n, name); ok {
			return
		}
	}
	for above := n.Parent; above != nil; above = above.Parent {
		if method, _ := get(above, "method"); above.DataAtom == atom.Form && method == "dialog" {
			return
		}
	}
	remove(n, "autofocus")
	set(n, "disabled", "")
}

// asset fetches a file of the pages once, and returns its path without the version of its content.
func (r *recording) asset(address string) (string, error) {
	file, _, _ := strings.Cut(address, "?")
	if r.files[file] != nil {
		return file, nil
	}
	answer, err := r.client.Get(r.base + address)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", address, answer.Status)
	}
	r.files[file], err = io.ReadAll(answer.Body)
	return file, err
}

// element parses one element, which stands inside another.
func element(text string, inside atom.Atom) *html.Node {
	context := &html.Node{Type: html.ElementNode, DataAtom: inside, Data: inside.String()}
	nodes, err := html.ParseFragment(strings.NewReader(text), context)
	if err != nil || len(nodes) != 1 {
		panic(fmt.Sprintf("%s: %d elements, %v", text, len(nodes), err))
	}
	return nodes[0]
}

func get(n *html.Node, name string) (string, bool) {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val, true
		}
	}
	return "", false
}

func set(n *html.Node, name, value string) {
	remove(n, name)
	n.Attr = append(n.Attr, html.Attribute{Key: name, Val: value})
}

func remove(n *html.Node, name string) {
	n.Attr = slices.DeleteFunc(n.Attr, func(a html.Attribute) bool { return a.Key == name })
}

func hasID(tree *html.Node, id string) bool {
	for n := range tree.Descendants() {
		if value, ok := get(n, "id"); ok && value == id {
			return true
		}
	}
	return false
}
