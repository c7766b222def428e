package assemble

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Header is the comment at the top of a script: what it does, its keys and arguments, its reply, and its promises.
type Header struct {
	Purpose  string
	Uses     []string // files of lib
	Keys     []string // names
	Types    []string // the types of the keys, in the same order
	EveryKey bool     // a call repeats the whole list of keys for every item
	Args     []string // names of the arguments that are sent once
	Each     []string // names of the arguments that are sent for every item, after Args
	History  bool     // a call that gives the key history has the actor as its last argument
	Returns  string
}

// sections are the beginnings of a header's lines, in their order. The first line is the purpose, which may begin with
// any text.
var sections = []string{
	"", "Uses: ", "KEYS[", "ARGV[", "Returns: ", "Complexity: ", "If a command fails here: ", "Run twice: ",
}

const (
	purposeSection = iota
	usesSection
	keysSection
	argsSection
	returnsSection
)

var (
	keyLine   = regexp.MustCompile(`^KEYS\[(\d+)(\.\.\.)?\] ([a-z_, ]+) \(([a-z; ]+)\)$`)
	argLine   = regexp.MustCompile(`^ARGV\[(\d+)(\.\.\.)?\] ([a-z_, ]+) \((.+)\)$`)
	actorLine = regexp.MustCompile(
		`^ARGV\[#\] actor \(string, who calls; the last argument, only if KEYS\[(\d+)\] is given\)$`)
)

// ParseHeader reads the header of a script. It refuses a header that is incomplete or out of order.
func ParseHeader(name, text string) (Header, error) {
	var h Header
	seen := map[int]bool{}
	last := purposeSection
	items := headerItems(text)
	if len(items) == 0 {
		return h, errors.New("no header: the file does not begin with a comment")
	}
	for i, item := range items {
		line := item.text
		section := sectionOf(line)
		first := i == 0
		mayRepeat := section == purposeSection || section == keysSection || section == argsSection
		if section < last || first && section != purposeSection || seen[section] && !mayRepeat {
			return h, fmt.Errorf("line %d is out of order: %s", item.line, line)
		}
		last, seen[section] = section, true
		if first {
			purpose, ok := strings.CutPrefix(line, name+": ")
			if !ok {
				return h, fmt.Errorf("the purpose is %q", line)
			}
			h.Purpose = strings.TrimSpace(purpose)
			continue
		}
		if err := h.add(section, line); err != nil {
			return h, fmt.Errorf("line %d: %w: %s", item.line, err, line)
		}
	}
	for section, title := range sections {
		if !seen[section] && section != argsSection {
			return h, fmt.Errorf("no line begins with %q", title)
		}
	}
	if slices.Contains(h.Keys, "history") != h.History {
		return h, errors.New("the key history and the argument actor must come together")
	}
	if len(h.Keys) != len(h.Types) {
		return h, fmt.Errorf("%d keys and %d types", len(h.Keys), len(h.Types))
	}
	return h, nil
}

// headerItem is one item of a header: a comment line, joined with the lines that continue it.
type headerItem struct {
	line int // the number of its first line
	text string
}

// headerItems returns the items of a header. A line that continues an item is indented by two more spaces.
func headerItems(text string) (items []headerItem) {
	number := 0
	for line := range strings.Lines(text) {
		number++
		line, isComment := strings.CutPrefix(strings.TrimSpace(line), "-- ")
		if !isComment {
			break
		}
		if continued, ok := strings.CutPrefix(line, "  "); ok && len(items) > 0 {
			items[len(items)-1].text += " " + continued
			continue
		}
		items = append(items, headerItem{line: number, text: line})
	}
	return items
}

func sectionOf(line string) int {
	for section := len(sections) - 1; section > purposeSection; section-- {
		if strings.HasPrefix(line, sections[section]) {
			return section
		}
	}
	return purposeSection
}

// add reads one item of the header.
func (h *Header) add(section int, line string) error {
	switch section {
	case usesSection:
		h.Uses = strings.Fields(strings.TrimPrefix(line, sections[usesSection]))
	case keysSection:
		return h.addKeys(line)
	case argsSection:
		return h.addArgs(line)
	case returnsSection:
		h.Returns = strings.TrimSpace(strings.TrimPrefix(line, sections[returnsSection]))
	}
	return nil
}

func (h *Header) addKeys(line string) error {
	m := keyLine.FindStringSubmatch(line)
	if m == nil || m[1] != strconv.Itoa(len(h.Keys)+1) || h.EveryKey {
		return errors.New("not the line of the next key")
	}
	h.Keys = append(h.Keys, strings.Split(m[3], ", ")...)
	h.Types = append(h.Types, strings.Split(m[4], "; ")...)
	h.EveryKey = m[2] != ""
	return nil
}

func (h *Header) addArgs(line string) error {
	if h.History {
		return errors.New("the actor must be the last argument")
	}
	if actor := actorLine.FindStringSubmatch(line); actor != nil {
		number := slices.Index(h.Keys, "history") + 1
		if number == 0 || actor[1] != strconv.Itoa(number) {
			return errors.New("the line of the actor must name the number of the key history")
		}
		h.History = true
		return nil
	}
	m := argLine.FindStringSubmatch(line)
	if m == nil || m[1] != strconv.Itoa(len(h.Args)+1) || h.Each != nil {
		return errors.New("not the line of the next argument")
	}
	if repeated := m[2] != ""; repeated {
		h.Each = strings.Split(m[3], ", ")
	} else {
		h.Args = append(h.Args, m[3])
	}
	return nil
}
