package flags

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// Search holds the flags that select messages by their contents.
type Search struct {
	Filter admin.SearchFilter
	Load   float64 // share of the server's time

	states  []string
	allowed []admin.State
	headers Headers
}

// Flags adds the flags to a command that concerns messages in the allowed states.
func (s *Search) Flags(cmd *cobra.Command, allowed []admin.State) {
	f := cmd.Flags()
	s.allowed = allowed
	names := make([]string, len(allowed))
	for i, state := range allowed {
		names[i] = string(state)
	}
	f.StringArrayVar(&s.states, "state", nil,
		"only in this state, or in several with commas: "+strings.Join(names, ", ")+"; may be repeated")
	f.StringArrayVar(&s.Filter.IDs, "id", nil, "the message with this ID; may be repeated")
	f.StringVar(&s.Filter.Prefix, "id-prefix", "", "messages whose ID begins with this text")
	f.StringVar(&s.Filter.Key, "key", "", "messages with this ordering key")
	f.Var(&s.headers, "header", "messages with this header; may be repeated")
	f.StringVar(&s.Filter.Text, "text", "", "messages whose payload has this text, byte for byte")
	f.StringVar(&s.Filter.Error, "error", "", "messages whose last error has this text")
	f.StringVarP(&s.Filter.Group, "group", "g", "", "messages that wait for this group, or that it holds or failed")
	if slices.Contains(allowed, admin.StateDead) {
		f.StringVar(&s.Filter.Reason, "reason", "", "dead letters with this reason: "+strings.Join(admin.Reasons(), ", "))
	}
	InstantVar(f, &s.Filter.From, "due-from", "messages that are due at this time or later: RFC 3339")
	InstantVar(f, &s.Filter.Until, "due-until", "messages that are due before this time: RFC 3339")
	f.Float64Var(&s.Load, "load", admin.DefaultSearchLoad, "share of the server's time to use, above 0 and up to 1")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

// Selects reports whether a flag other than --state selects messages.
func (s *Search) Selects() bool {
	f := s.Filter
	return len(f.IDs) > 0 || f.Prefix != "" || f.Key != "" || len(s.headers) > 0 || f.Text != "" || f.Error != "" ||
		f.Group != "" || f.Reason != "" || !f.From.IsZero() || !f.Until.IsZero()
}

// Narrows reports whether a flag narrows the search, --state included.
func (s *Search) Narrows() bool { return s.Selects() || len(s.states) > 0 }

// Complete sets the fields of the filter that no flag sets directly, and refuses wrong values. Without --state, the
// filter has all allowed states.
func (s *Search) Complete(queues []string) error {
	s.Filter.Queues, s.Filter.Headers, s.Filter.States = queues, s.headers, nil
	var errs []error
	if len(s.states) > 0 {
		for word := range strings.SplitSeq(strings.Join(s.states, ","), ",") {
			if !slices.Contains(s.allowed, admin.State(word)) {
				errs = append(errs, usage.Errorf("state %q: must be one of %s", word, joined(s.allowed)))
			}
			s.Filter.States = append(s.Filter.States, admin.State(word))
		}
	} else {
		s.Filter.States = slices.Clone(s.allowed)
	}
	if !(s.Load > 0 && s.Load <= 1) {
		errs = append(errs, usage.Errorf("load %v: must be a share above 0 and up to 1", s.Load))
	}
	if s.Filter.Reason != "" && !slices.Contains(admin.Reasons(), s.Filter.Reason) {
		errs = append(errs, usage.Errorf("reason %q: must be one of %s", s.Filter.Reason,
			strings.Join(admin.Reasons(), ", ")))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.Filter.Validate()
}

func joined(states []admin.State) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(states), " ", ", "), "[]")
}
