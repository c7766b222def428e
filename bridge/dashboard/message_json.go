package dashboard

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// This file folds JSON: it makes a tree of a payload. The tree keeps the order of fields, fields with the same name,
// and every digit of numbers.

// Bounds of a tree.
const (
	maxNodes     = 2000
	maxDepth     = 32
	maxJSONText  = 4 << 10 // bytes of a string
	openDepth    = 2       // objects and arrays above this depth are unfolded at first
	checkedBytes = 1 << 20 // a longer payload is only checked as far as it is shown
)

// jsonNode is a value of a JSON text.
type jsonNode struct {
	Name     string // of a field, in quotes; "" = not a field
	Opening  string // "{" or "[" of an object or array; "" = another value
	Closing  string
	Kind     string // of another value: "string", "number" or "word"
	Text     string // of another value
	Size     int64  // of a string that is shown in part; 0 = it is shown whole
	Children []*jsonNode
	Rest     string // why not all children are shown; "" = they are
	Open     bool
}

// jsonTree is a folded payload.
type jsonTree struct {
	Root  *jsonNode
	Shown int64 // bytes of the payload that the tree shows; 0 = all
}

// errEnough: the tree has reached its bounds.
var errEnough = errors.New("the tree is large enough")

// foldJSON returns the tree of a payload whose value is an object or an array. ok is false if the payload has another
// form.
func foldJSON(payload []byte) (tree jsonTree, ok bool) {
	if !beginsLikeTree(payload) || !utf8.Valid(payload) {
		return tree, false
	}
	if len(payload) <= checkedBytes && !json.Valid(payload) {
		return tree, false
	}
	f := folder{payload: payload, decoder: json.NewDecoder(bytes.NewReader(payload))}
	f.decoder.UseNumber()
	root, err := f.value(0)
	switch {
	case errors.Is(err, errEnough):
		return jsonTree{root, f.decoder.InputOffset()}, true
	case err != nil:
		return tree, false
	}
	_, err = f.decoder.Token()
	return jsonTree{Root: root}, errors.Is(err, io.EOF)
}

// beginsLikeTree reports whether a payload may be an object or an array.
func beginsLikeTree(payload []byte) bool {
	begin := bytes.TrimLeft(payload, " \t\r\n")
	return len(begin) > 0 && (begin[0] == '{' || begin[0] == '[')
}

// folder reads the tokens of a payload.
type folder struct {
	payload []byte
	decoder *json.Decoder
	nodes   int
}

// token returns the next token and its text in the payload.
func (f *folder) token() (json.Token, string, error) {
	before := f.decoder.InputOffset()
	token, err := f.decoder.Token()
	if err != nil {
		return nil, "", err
	}
	return token, strings.TrimLeft(string(f.payload[before:f.decoder.InputOffset()]), " \t\r\n,:"), nil
}

// value reads the next value. With errEnough it returns the part of the value that it has read.
func (f *folder) value(depth int) (*jsonNode, error) {
	token, text, err := f.token()
	if err != nil {
		return nil, err
	}
	return f.valueOf(token, text, depth)
}

// valueOf returns the value that begins with a token.
func (f *folder) valueOf(token json.Token, text string, depth int) (*jsonNode, error) {
	f.nodes++
	n := &jsonNode{}
	switch token := token.(type) {
	case json.Delim:
		n.Opening, n.Open = token.String(), depth < openDepth
		n.Closing = map[string]string{"{": "}", "[": "]"}[n.Opening]
		return n, f.children(n, depth+1)
	case string:
		n.Kind, n.Text = "string", jsonString(token, text)
		if len(n.Text) > maxJSONText {
			n.Size, n.Text = int64(len(token)), clipped(n.Text)
		}
	case json.Number:
		n.Kind, n.Text = "number", token.String()
		if len(n.Text) > maxJSONText {
			n.Size, n.Text = int64(len(n.Text)), clipped(n.Text)
		}
	default: // true, false and null
		n.Kind, n.Text = "word", text
	}
	return n, nil
}

// clipped returns the beginning of a text, which does not keep the whole in memory.
func clipped(text string) string { return strings.Clone(clip(text, maxJSONText)) }

// children reads the fields of an object, or the elements of an array, until its end.
func (f *folder) children(n *jsonNode, depth int) error {
	if depth > maxDepth {
		n.Rest = "it is nested too deeply"
		return f.skip()
	}
	for f.decoder.More() {
		if f.nodes >= maxNodes || f.decoder.InputOffset() >= shownBytes {
			n.Rest = "the tree would be too large"
			return errEnough
		}
		name := ""
		if n.Opening == "{" {
			token, text, err := f.token()
			if err != nil {
				return err
			}
			decoded, _ := token.(string)
			name = clipped(jsonString(decoded, text))
		}
		child, err := f.value(depth)
		if child != nil {
			child.Name = name
			n.Children = append(n.Children, child)
		}
		if errors.Is(err, errEnough) {
			n.Rest = "the tree would be too large"
		}
		if err != nil {
			return err
		}
	}
	_, _, err := f.token() // the end
	return err
}

// skip reads to the end of an object or array whose beginning was read. errEnough: the end is too far away.
func (f *folder) skip() error {
	for open := 1; open > 0; {
		if f.decoder.InputOffset() > checkedBytes {
			return errEnough
		}
		token, _, err := f.token()
		if err != nil {
			return err
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			open++
		case json.Delim('}'), json.Delim(']'):
			open--
		}
	}
	return nil
}

// jsonString returns a string of a JSON text in quotes, with escapes only for characters that need them. If decoding
// has lost something, it returns the string as the text has it.
func jsonString(decoded, text string) string {
	if strings.ContainsRune(decoded, utf8.RuneError) {
		return visible(text)
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range decoded {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r > 0xffff && isInvisible(r):
			high, low := utf16.EncodeRune(r)
			b.WriteString(escape(high) + escape(low))
		case isInvisible(r):
			b.WriteString(escape(r))
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
