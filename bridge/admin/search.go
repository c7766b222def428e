package admin

import (
	"context"

	"github.com/duestream/duestream/stream/search"
)

// SearchFilter selects messages by their contents, in all states: see [search.Filter].
type SearchFilter = search.Filter

// SearchOptions control a search; the zero value is valid: see [search.Options].
type SearchOptions = search.Options

// SearchProgress tells how far a search is: see [search.Progress].
type SearchProgress = search.Progress

// Hit is one place of a message that a search found: see [search.Hit].
type Hit = search.Hit

// States returns the states of messages, in the order in which a search looks at them.
func States() []State {
	return []State{StateScheduled, StateRetrying, StateReady, StatePending, StateDead}
}

// Limits of a SearchFilter, and the default of SearchOptions.
const (
	MaxSearchTextBytes = search.MaxTextBytes // of SearchFilter.Text
	MaxSearchIDs       = search.MaxIDs       // of SearchFilter.IDs
	DefaultSearchLoad  = search.DefaultLoad  // of SearchOptions.Load
)

// Search calls found for each place of a message that passes the filter, as soon as it is found, one call at a time. If
// found returns an error, the search ends with that error. If found is nil, the search only counts. If ctx ends, the
// progress so far is returned with its error.
//
// The server looks at every message, in calls of about a millisecond, and between them the search waits, so that it
// uses at most SearchOptions.Load of the server's time. By default a search of 1,000,000 messages of 200 bytes takes
// about a minute. No payload leaves the server. A message that moves meanwhile may be found in two places, or not at
// all if its delivery fails meanwhile.
func (a *Admin) Search(
	ctx context.Context, f SearchFilter, o SearchOptions, found func(Hit) error,
) (SearchProgress, error) {
	return search.Run(ctx, a.redis.Client, a.prefix, f, o, found)
}
