package dashboard

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// unfold returns the JSON text of a tree.
func unfold(n *jsonNode) string {
	text := n.Text
	if n.Opening != "" {
		var children []string
		for _, child := range n.Children {
			children = append(children, unfold(child))
		}
		if n.Rest != "" {
			children = append(children, "…")
		}
		text = n.Opening + strings.Join(children, ",") + n.Closing
	}
	if n.Name != "" {
		text = n.Name + ":" + text
	}
	return text
}

// A tree must keep every digit, the order of fields, and fields with the same name.
func TestFoldJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{}`:                                  `{}`,
		` [ ] `:                               `[]`,
		`{"b":1,"a":[true,false,null],"b":2}`: `{"b":1,"a":[true,false,null],"b":2}`,
		`[12345678901234567890, 1.10, 1E400, -0, 0.1e-7]`: `[12345678901234567890,1.10,1E400,-0,0.1e-7]`,
		`["\u00e9\n\"\\ \u0000 \u202e"]`:                  `["é\n\"\\ \u0000 \u202e"]`,
		`["\ud800", "\udb40\udc41"]`:                      `["\ud800","\udb40\udc41"]`,
		`{"":{"\u0000":"\/"}}`:                            `{"":{"\u0000":"/"}}`,
		`[[[["deep"]]]]`:                                  `[[[["deep"]]]]`,
	} {
		tree, ok := foldJSON([]byte(text))
		if !ok {
			t.Errorf("%s is not folded", text)
			continue
		}
		redistest.Want(t, text, unfold(tree.Root), want)
		redistest.Want(t, text+": shown", tree.Shown, int64(0))
		if !json.Valid([]byte(unfold(tree.Root))) {
			t.Errorf("%s becomes %s, which is no JSON", text, unfold(tree.Root))
		}
	}
	for _, text := range []string{
		"", " ", "1", `"x"`, "null", "{", "[1", `{"a" 1}`, "[1,]", "[01]", "{} {}", "{}x", "[\"\xff\"]", "{'a':1}",
	} {
		if tree, ok := foldJSON([]byte(text)); ok {
			t.Errorf("%q is folded: %s", text, unfold(tree.Root))
		}
	}
}

// A large, long or deep JSON text must become a small tree that says that it is not the whole.
func TestFoldJSONIsBounded(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"many":       "[" + strings.Repeat("1,", 100_000) + "1]",
		"long":       "[" + strings.Repeat(`"`+strings.Repeat("x", 1000)+`",`, 1000) + "1]",
		"deep":       strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
		"deep large": strings.Repeat("[", 4<<20),
		"objects":    "{" + strings.Repeat(`"a":{"b":1},`, 50_000) + `"c":1}`,
	} {
		tree, ok := foldJSON([]byte(text))
		if !ok {
			t.Errorf("%s is not folded", name)
			continue
		}
		shown := unfold(tree.Root)
		if len(shown) > 200<<10 || !strings.Contains(shown, "…") {
			t.Errorf("%s: the tree has %d bytes: %.100s", name, len(shown), shown)
		}
	}
	tree, ok := foldJSON([]byte(`["` + strings.Repeat("x", 100_000) + `"]`))
	redistest.Want(t, "a long string", fmt.Sprint(ok, len(tree.Root.Children[0].Text), tree.Root.Children[0].Size),
		fmt.Sprint(true, maxJSONText, 100_000))
}

// FuzzFoldJSON: a text becomes a tree only if it is JSON, and a whole tree has the same values as the text.
func FuzzFoldJSON(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,"x",null,{"a":1}]}`, `[1e999]`, `["\ud800"]`, `[`, "{}", `[{}]`, `{"a":1,"a":2}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		tree, ok := foldJSON([]byte(text))
		if !ok {
			return
		}
		if !json.Valid([]byte(text)) {
			t.Fatalf("%q is folded, and is no JSON", text)
		}
		again, ok := foldJSON([]byte(unfold(tree.Root)))
		if tree.Shown == 0 && !strings.Contains(unfold(tree.Root), "…") && (!ok || unfold(again.Root) != unfold(tree.Root)) {
			t.Errorf("%q becomes %q, and that %q", text, unfold(tree.Root), unfold(again.Root))
		}
	})
}
