package dashboard

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// This file shows payloads: as text, as folded JSON, or in hexadecimal digits. The page holds the beginning of a large
// payload, and links to the whole.

// Bounds of a payload on the page.
const (
	shownBytes    = 64 << 10 // as text or JSON
	shownHexBytes = 16 << 10
	hexWidth      = 16 // bytes of a line
)

// Ways to show a payload.
const (
	viewText = "text"
	viewJSON = "json"
	viewHex  = "hex"
)

// payloadView is a payload for the page.
type payloadView struct {
	Of     []string // the places that have it
	Queue  string
	Digest string
	Size   int64
	Shown  int64 // bytes of the payload that the page shows

	View    string // how it is shown
	Views   []string
	IsText  bool // it is UTF-8
	Text    string
	Escaped bool // the text has characters that are shown as escapes
	JSON    jsonTree
	Hex     string
}

// IsWhole reports whether the page shows the whole payload.
func (p payloadView) IsWhole() bool { return p.Shown >= p.Size }

// CopyAs returns the form in which the payload is copied.
func (p payloadView) CopyAs() string {
	if p.IsText {
		return viewText
	}
	return "base64"
}

// viewPayloads returns the different payloads of the places, and how many of them are left out.
func (v messageView) viewPayloads() (all []payloadView, hidden int) {
	at := map[string]int{}
	left := map[string]bool{}
	for _, p := range v.Places() {
		if !p.IsPayloadShown {
			if p.Digest != "" { // else it is lost
				left[p.Digest] = true
			}
			continue
		}
		i, known := at[p.Digest]
		if !known {
			i = len(all)
			at[p.Digest] = i
			one := viewPayload(p.Payload, v.View)
			one.Digest, one.Queue = p.Digest, p.Queue
			all = append(all, one)
		}
		all[i].Of = append(all[i].Of, p.Label())
	}
	return all, len(left)
}

// viewPayload returns the view of a payload. If it cannot be shown as wished, or if there is no wish, the view is JSON
// for an object or array, text for other UTF-8, and hexadecimal digits for anything else. Whether a large payload is
// JSON is only found out if the view may be JSON.
func viewPayload(payload []byte, wish string) payloadView {
	p := payloadView{Size: int64(len(payload)), IsText: utf8.Valid(payload), Views: []string{viewHex}}
	if p.IsText {
		p.Views = []string{viewText, viewHex}
		if len(payload) > shownBytes && (wish == viewText || wish == viewHex) {
			if beginsLikeTree(payload) {
				p.Views = []string{viewJSON, viewText, viewHex}
			}
		} else if tree, ok := foldJSON(payload); ok {
			p.JSON = tree
			p.Views = []string{viewJSON, viewText, viewHex}
		}
	}
	p.View = p.Views[0]
	for _, one := range p.Views {
		if one == wish {
			p.View = wish
		}
	}
	switch p.View {
	case viewJSON:
		p.Shown = p.Size
		if p.JSON.Shown > 0 {
			p.Shown = min(p.JSON.Shown, p.Size)
		}
	case viewText:
		text := clip(string(payload[:min(len(payload), shownBytes+utf8.UTFMax)]), shownBytes)
		p.Shown = int64(len(text))
		text = strings.ReplaceAll(text, "\r\n", "\n")
		p.Text = visible(text)
		p.Escaped = p.Text != text
	case viewHex:
		part := payload[:min(len(payload), shownHexBytes)]
		p.Shown, p.Hex = int64(len(part)), hexDump(part)
	}
	return p
}

// hexDump returns lines with an offset, 16 bytes in hexadecimal digits, and the same bytes as ASCII.
func hexDump(data []byte) string {
	var b strings.Builder
	for offset := 0; offset < len(data); offset += hexWidth {
		line := data[offset:min(offset+hexWidth, len(data))]
		fmt.Fprintf(&b, "%08x  ", offset)
		for i := range hexWidth {
			if i < len(line) {
				fmt.Fprintf(&b, "%02x ", line[i])
			} else {
				b.WriteString("   ")
			}
			if i == hexWidth/2-1 {
				b.WriteByte(' ')
			}
		}
		b.WriteString(" |")
		for _, c := range line {
			if c < ' ' || c > '~' {
				c = '.'
			}
			b.WriteByte(c)
		}
		b.WriteString("|\n")
	}
	return b.String()
}

// servePayload answers with a whole payload: as a download, or with as=text or as=base64 as plain text.
func servePayload(q *request) error {
	defer q.limit()()
	if err := lua.CheckQueue(q.queue()); err != nil {
		return err
	}
	s, err := q.findOnce(inQueue(q.queue()))
	if err != nil {
		return err
	}
	wanted := q.query.Get("digest")
	for _, p := range s.finding.Places {
		if p.Payload == nil || digest(p.Payload) != wanted {
			continue
		}
		return q.writePayload(p.Payload, q.query.Get("id")+".payload")
	}
	return fmt.Errorf("payload of %s: %w: the message has gone on, or has another payload now", q.query.Get("id"),
		admin.ErrNotFound)
}

// findOnce searches the message of the address, when the request has its turn.
func (q *request) findOnce(in searched) (messageState, error) {
	leave, err := q.takeFind()
	if err != nil {
		return messageState{}, err
	}
	defer leave()
	return q.findMessage(q.ctx, in, q.query.Get("id"))
}

// writePayload answers with a whole payload: as a download with this name, or with as=text or as=base64 as plain text.
func (q *request) writePayload(content []byte, name string) error {
	held := len(content)
	if q.query.Get("as") == "base64" {
		held += base64.StdEncoding.EncodedLen(len(content))
	}
	return q.writeWhole(len(content), held, func() []byte {
		h := q.w.Header()
		h.Set("Content-Security-Policy", "sandbox; default-src 'none'; frame-ancestors 'none'")
		switch q.query.Get("as") {
		case viewText:
			h.Set("Content-Type", "text/plain; charset=utf-8")
		case "base64":
			h.Set("Content-Type", "text/plain; charset=utf-8")
			return []byte(base64.StdEncoding.EncodeToString(content))
		default:
			h.Set("Content-Type", "application/octet-stream")
			h.Set("Content-Disposition", attachment(name))
		}
		return content
	})
}

// Bounds of an answer that is written whole.
const (
	largeAnswer = 1 << 20   // above this size, a process writes a few downloads at a time
	smallAnswer = 64 << 10  // up to this size, an answer uses little memory
	answerBytes = 128 << 20 // that all other downloads and pages use while they are written
	answerPiece = 256 << 10 // a viewer must take this much within streamTimeout
	answerSpeed = 128 << 10 // bytes a second that a viewer must take on average
)

// errManyAnswers: the answers that are being written use all memory that the token may have for them.
var errManyAnswers = errors.New("too many large answers are being sent at the same time: try again in some seconds")

// takeAnswer takes the memory of an answer, which is used until the viewer has read it. The caller calls the function
// that it returns.
func (q *request) takeAnswer(size, held int) (leave func(), err error) {
	if size <= smallAnswer {
		return func() {}, nil
	}
	token := q.token()
	if !q.answerMemory.take(token, held) {
		return nil, errManyAnswers
	}
	return func() { q.answerMemory.giveBack(token, held) }, nil
}

// writeWhole writes a download of about size bytes, which holds some bytes of memory until the viewer has read it. Only
// a few large ones are written at a time. An error means that nothing was written.
func (q *request) writeWhole(size, held int, answer func() []byte) error {
	if size <= largeAnswer {
		leave, err := q.takeAnswer(size, held)
		if err != nil {
			return err
		}
		defer leave()
	} else {
		t, err := q.downloads.join(q.grant.Name())
		if err != nil {
			return err
		}
		defer q.downloads.leave(t)
		select {
		case <-t.begun:
		default: // to wait would keep the memory of the answer
			return tooMany{q.downloads.what, q.downloads.before(t) + 1}
		}
	}
	content := answer()
	q.w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	if len(content) <= answerPiece {
		_ = http.NewResponseController(q.w).SetWriteDeadline(time.Now().Add(readTime(int64(len(content)))))
		_, _ = q.w.Write(content)
		return nil
	}
	rc := http.NewResponseController(q.w)
	end := time.Now().Add(streamTimeout + time.Duration(len(content)/answerSpeed)*time.Second)
	for piece := range slices.Chunk(content, answerPiece) {
		if time.Now().After(end) {
			break
		}
		err := writeInTime(rc, func() error {
			_, err := q.w.Write(piece)
			return err
		})
		if err != nil {
			break // the viewer has gone, or takes nothing
		}
	}
	return nil
}

// serveMessageJSON answers with everything that is known of a message, in one queue or in all, as a download.
func serveMessageJSON(q *request) error {
	defer q.limit()()
	in, err := q.whereToSearch()
	if err != nil {
		return err
	}
	s, err := q.findOnce(in)
	if err != nil {
		return err
	}
	if err := q.readStory(q.ctx, &s); err != nil {
		return err
	}
	var text []byte
	busy := q.work(s.bytes(), func() {
		text, err = json.MarshalIndent(struct {
			admin.Finding
			Story []admin.Change `json:"story,omitempty"`
		}{s.finding, s.story.Changes}, "", "  ")
	})
	if err := cmp.Or(busy, err); err != nil {
		return err
	}
	return q.writeWhole(len(text), cap(text), func() []byte {
		h := q.w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Content-Disposition", attachment(q.query.Get("id")+".json"))
		return append(text, '\n')
	})
}

// attachment returns the value of Content-Disposition for a download. Of the name it keeps only characters that are
// safe in names of files.
func attachment(name string) string {
	safe := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '_'
	}, name)
	if len(safe) > 100 {
		safe = safe[len(safe)-100:]
	}
	return mime.FormatMediaType("attachment", map[string]string{"filename": strings.TrimLeft(safe, ".")})
}
