package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

const (
	defaultFound = 100 // hits of a search that sets no limit
	mostFound    = 1_000_000
	mostChosen   = 10_000    // hits that a request names for an action
	mostInHits   = 1_000_000 // groups, and headers, of all these hits together
	mostQueues   = 1000      // that a filter names
	mostLogged   = 20        // queues that a line of the log names
	maxActBytes  = 16 << 20  // of a request for a search or an action
)

// chosenRule is the rule for the number of hits that a request names. Its argument is mostChosen.
const chosenRule = "must be 1 to %d hits of a search"

// hitLine is a hit of a search.
type hitLine struct {
	Hit admin.Hit `json:"hit"`
}

// searchRequest is the body of a search.
type searchRequest struct {
	Filter admin.SearchFilter `json:"filter"`
	Limit  *int               `json:"limit"`
}

// search writes a line for each place of a message that passes the filter.
func search(c *call) (int, any, error) {
	end, err := c.beginLong(access.Inspect)
	if err != nil {
		return 0, nil, err
	}
	defer end()
	var request searchRequest
	if err := c.readObject(&request); err != nil {
		return 0, nil, err
	}
	limit := defaultFound
	if request.Limit != nil {
		limit = *request.Limit
	}
	f := request.Filter
	if err := errors.Join(lua.Between("limit", limit, 1, mostFound), f.Validate()); err != nil {
		return 0, nil, err
	}
	if f.Queues, err = c.queuesOf(access.Inspect, distinct(f.Queues)); err != nil {
		return 0, nil, err
	}
	return 0, nil, c.runLong(access.Inspect, f.Queues, func(ctx context.Context, out *longRun) (any, error) {
		if len(f.Queues) == 0 { // an empty list would mean all queues
			return admin.SearchProgress{Complete: true}, nil
		}
		o := admin.SearchOptions{Limit: limit, Progress: func(p admin.SearchProgress) { out.setProgress(p) }}
		return c.op.Search(ctx, f, o, func(h admin.Hit) error {
			out.write(hitLine{h})
			return context.Cause(ctx)
		})
	})
}

// actRequest is the body of an action.
type actRequest struct {
	Action admin.ActionKind    `json:"action"`
	Filter *admin.SearchFilter `json:"filter"`
	Hits   []admin.Hit         `json:"hits"`
	All    bool                `json:"all"` // the filter may select everything
	In     *int64              `json:"in_ms"`
	At     *int64              `json:"at_ms"`
	Spread int64               `json:"spread_ms"`
	To     string              `json:"to"`
	Rate   *float64            `json:"rate"` // messages per second
	DryRun bool                `json:"dry_run"`
}

// act changes everything that passes the filter, or the hits that the request names.
func act(c *call) (int, any, error) {
	end, err := c.beginLong(access.Operate)
	if err != nil {
		return 0, nil, err
	}
	defer end()
	var request actRequest
	if err := c.readObject(&request); err != nil {
		return 0, nil, err
	}
	what, err := request.what()
	if err != nil {
		return 0, nil, err
	}
	var named []string
	if f := request.Filter; f != nil {
		named = f.Queues
	}
	for _, h := range request.Hits { // none if there is a filter
		named = append(named, h.Queue)
	}
	named = distinct(named)
	queues, err := c.queuesOf(access.Operate, named)
	if err != nil {
		return 0, nil, err
	}
	o := admin.ActOptions{DryRun: request.DryRun}
	if request.Rate != nil {
		o.Rate = *request.Rate
	}
	c.Audit("act: "+string(what.Kind)+" begins", firstOf(named), slog.String("request", c.w.id),
		slog.Bool("dry_run", o.DryRun), slog.Bool("all", request.All), slog.Int("hits", len(request.Hits)))
	var result admin.ActResult
	err = c.runLong(access.Operate, queues, func(ctx context.Context, out *longRun) (any, error) {
		var err error
		o.Progress = func(r admin.ActResult) { out.setProgress(r) }
		switch f := request.Filter; {
		case len(queues) == 0: // an empty list would mean all queues
			result.Complete = true
		case f == nil:
			result, err = c.op.ActOn(ctx, request.Hits, what, o)
		default:
			f.Queues = queues
			if len(f.States) == 0 {
				f.States = what.Kind.States()
			}
			result, err = c.op.Act(ctx, *f, what, o)
		}
		return result, err
	})
	c.Audit("act: "+string(what.Kind), firstOf(named), slog.String("request", c.w.id),
		slog.Bool("done", err == nil && result.Complete), slog.Bool("dry_run", o.DryRun),
		slog.Int64("changed", result.Changed))
	return 0, nil, err
}

// what returns the action of the request. Its error names each wrong field of the body.
func (r *actRequest) what() (admin.Action, error) {
	what := admin.Action{Kind: r.Action, To: r.To}
	var errs []error
	milliseconds := func(name string, ms int64) time.Duration {
		if ms < 0 || ms > lua.MaxDelay.Milliseconds() {
			errs = append(errs, lua.Invalid(name, strconv.FormatInt(ms, 10), "must be between 0 and %d",
				lua.MaxDelay.Milliseconds()))
			return 0
		}
		return time.Duration(ms) * time.Millisecond
	}
	if r.In != nil {
		what.Delay = milliseconds("in_ms", *r.In)
	}
	what.Spread = milliseconds("spread_ms", r.Spread)
	if r.At != nil {
		what.At = time.UnixMilli(*r.At)
	}
	refuseIf := func(isWrong bool, field, value, rule string, args ...any) {
		if isWrong {
			errs = append(errs, lua.Invalid(field, value, rule, args...))
		}
	}
	refuseIf(r.Action == admin.ActReschedule && (r.In == nil) == (r.At == nil), "in_ms", "",
		"give either in_ms or at_ms with the action reschedule")
	refuseIf(r.Rate != nil && !(*r.Rate > 0 && *r.Rate <= 1e6), "rate", "", "must be a number above 0, up to 1000000")
	refuseIf((r.Filter == nil) == (r.Hits == nil), "filter", "", "give either filter or hits")
	refuseIf(r.Hits != nil && len(r.Hits) == 0, "hits", "0", chosenRule, mostChosen) // readObject bounds their number
	if r.Filter != nil {
		f := *r.Filter
		errs = append(errs, f.Validate())
		selects := len(f.IDs) > 0 || f.Prefix != "" || f.Key != "" || len(f.Headers) > 0 || f.Error != "" || f.Text != "" ||
			f.Group != "" || f.Reason != "" || !f.From.IsZero() || !f.Until.IsZero()
		refuseIf(!selects && !r.All, "all", "", "must be true where the filter selects by queues and states alone")
	}
	errs = append(errs, what.Validate())
	return what, errors.Join(errs...)
}

// distinct returns the names sorted, each once.
func distinct(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }

// firstOf returns names for a line of the log: the first ones, and the number of the others.
func firstOf(names []string) string {
	if len(names) <= mostLogged {
		return strings.Join(names, ",")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:mostLogged], ","), len(names)-mostLogged)
}

// readObject reads the body, a JSON object without unknown fields, and with no more elements than newElements allows.
func (c *call) readObject(into any) error {
	text, err := c.Body(maxActBytes)
	if err != nil {
		return err
	}
	return decodeObject(text, into)
}

func decodeObject(text []byte, into any) error {
	if !utf8.Valid(text) { // the decoder would put other characters in place of these bytes
		return malformed("the body is not UTF-8")
	}
	if text = bytes.TrimSpace(text); !bytes.HasPrefix(text, []byte("{")) || !json.Valid(text) {
		return malformed("the body is not a JSON object")
	}
	if err := checkElements(text, newElements()); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return malformed("the body is not an object of known fields: %s", shapeOf(err))
	}
	return nil
}

// shapeOf returns the part of a decoding error that names the wrong field. It leaves out every value.
func shapeOf(err error) string {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return cut(wrong.Field) + " must not be a " + strings.Fields(wrong.Value)[0]
	}
	if _, field, is := strings.Cut(err.Error(), "unknown field "); is {
		return "unknown field " + cut(field)
	}
	return "a value cannot be read"
}

// queuesOf returns the queues of a request that may name queues: the named ones, on which the token must allow the verb
// and which must exist, or all on which it allows the verb. Several names are looked up with one read of the registry.
// The names must be distinct.
func (c *call) queuesOf(verb access.Verb, named []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(c.Ctx, c.cfg.Timeout)
	defer cancel()
	if len(named) == 0 {
		all, err := c.op.Queues(ctx)
		return slices.DeleteFunc(all, func(queue string) bool { return !c.Grant.May(verb, queue) }), err
	}
	if err := c.mayAll(verb, named); err != nil {
		return nil, err
	}
	var registered []string // sorted
	if len(named) > 1 {
		var err error
		if registered, err = c.op.Queues(ctx); err != nil {
			return nil, err
		}
	}
	for _, queue := range named {
		if _, known := slices.BinarySearch(registered, queue); known {
			continue
		}
		if err := c.op.CheckKnown(ctx, queue); err != nil {
			return nil, err
		}
	}
	return named, nil
}
