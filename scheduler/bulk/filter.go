package bulk

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Filter selects messages of a schedule; all fields that are set must match. The zero value selects every message that
// waits for its first delivery, or was redriven for all groups.
type Filter struct {
	IDs     []string          // the ID is one of these; empty = any ID
	Prefix  string            // the ID begins with this text
	Headers map[string]string // the message has all of these headers, with these values
	From    time.Time         // the message is due at this time or later
	Until   time.Time         // the message is due before this time
	Retries bool              // select retries as well, of any group
	Group   string            // select only retries of this group
	Error   string            // the error text of the last failed attempt has this part
	Text    string            // the payload has this part, byte for byte; at most lua.MaxSearchTextBytes
	Key     string            // the message has this ordering key

	// Messages names the messages to change, as a run or a search reported them. One that does not match the other
	// fields any more is counted as gone. Without Retries or Group, retries among them are counted as gone, too.
	Messages []Message
}

func (f Filter) validate() error {
	errs := []error{lua.CheckHeaders(f.Headers)}
	for _, id := range f.IDs {
		errs = append(errs, lua.CheckID(id))
	}
	if f.Prefix != "" && lua.CheckID(f.Prefix) != nil {
		rule := "must be the beginning of an ID: UTF-8 of at most %d bytes without control characters"
		errs = append(errs, lua.Invalid("prefix", f.Prefix, rule, lua.MaxIDBytes))
	}
	if f.Group != "" {
		errs = append(errs, lua.CheckGroup(f.Group))
	}
	if f.Key != "" {
		errs = append(errs, lua.CheckKey(f.Key))
	}
	if !f.From.IsZero() && !f.Until.IsZero() && !f.From.Before(f.Until) {
		errs = append(errs, lua.Invalid("until", f.Until.Format(time.RFC3339Nano), "must be after %s",
			f.From.Format(time.RFC3339Nano)))
	}
	if len(f.Error) > lua.MaxErrorBytes {
		errs = append(errs, lua.Invalid("error", f.Error, "must be at most %d bytes", lua.MaxErrorBytes))
	}
	if len(f.Text) > lua.MaxSearchTextBytes {
		errs = append(errs, lua.Invalid("text", f.Text, "must be at most %d bytes", lua.MaxSearchTextBytes))
	}
	if len(f.Messages) > 0 && len(f.IDs) > 0 {
		errs = append(errs, lua.Invalid("ids", strconv.Itoa(len(f.IDs)), "must be none when messages are given"))
	}
	return errors.Join(errs...)
}

// allByID reports whether ZSCORE can find all selected messages: their IDs are known, and no retries are selected.
func (f Filter) allByID() bool { return len(f.IDs) > 0 && !f.Retries && f.Group == "" }

// dependsOnContent reports whether a message may stop matching although its ID stays the same, because it was moved to
// another due time or replaced.
func (f Filter) dependsOnContent() bool {
	return len(f.Headers) > 0 || !f.From.IsZero() || !f.Until.IsZero() || f.hasTexts()
}

// hasTexts reports whether the filter is about texts that the server compares.
func (f Filter) hasTexts() bool { return f.Error != "" || f.Text != "" || f.Key != "" }

// texts returns the part of the filter that the server compares.
func (f Filter) texts() lua.SearchFilter {
	return lua.SearchFilter{
		States: []string{lua.SearchScheduled, lua.SearchRetrying}, Error: f.Error, Text: f.Text, Key: f.Key,
	}
}

// pattern returns a glob that matches all selected members.
func (f Filter) pattern() string { return view.EscapeGlob(f.Prefix) + "*" }

// matches reports whether a member matches, apart from IDs and headers, which the caller checks.
func (f Filter) matches(m lua.Member, due time.Time) bool {
	// A member without a group waits for its first delivery, or was redriven for all groups.
	isRetry := m.Kind != lua.MemberFirst && m.Group != ""
	switch {
	case f.Group != "":
		if !isRetry || m.Group != f.Group {
			return false
		}
	case !f.Retries && isRetry:
		return false
	}
	dueInTime := (f.From.IsZero() || !due.Before(f.From)) && (f.Until.IsZero() || due.Before(f.Until))
	return strings.HasPrefix(m.ID, f.Prefix) && dueInTime
}

// hasHeaders reports whether a message has all headers of the filter.
func (f Filter) hasHeaders(headers map[string]string) bool {
	for name, want := range f.Headers {
		if got, there := headers[name]; !there || got != want {
			return false
		}
	}
	return true
}
