package dashboard

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// This file holds the page about tokens. It is for tokens that may inspect all queues.

func tokensSection() section {
	return section{
		nav:   []navItem{{Path: "tokens", Title: "Tokens", Key: "t", AllQueues: true}},
		pages: []page{{path: "tokens", title: "Tokens", template: "tokens", show: showTokens}},
		actions: []action{
			{path: "do-add-token", verbs: []access.Verb{access.Operate}, allQueues: true, form: "tokens", do: addToken},
			{path: "do-remove-token", verbs: []access.Verb{access.Operate}, allQueues: true, do: removeToken},
		},
	}
}

// tokensView is the data of the page.
type tokensView struct {
	Tokens []admin.StoredToken
	Filter string // a part of the name, the description or a queue
	More   int    // tokens that are not shown
	Hidden int    // tokens that the filter hides
	Verbs  []verbChoice
	Added  *addedToken // nil = no token was added by this request
	Unread string      // why the list of tokens cannot be shown beside the secret; "" = it is shown
}

// verbChoice is a verb that a new token may have.
type verbChoice struct {
	Verb    access.Verb
	Allows  string
	Checked bool
}

// addedToken is a new token with its secret, which is shown once.
type addedToken struct{ Name, Secret string }

var verbTexts = map[access.Verb]string{
	access.Publish: "schedule, cancel and move messages",
	access.Consume: "take messages, and acknowledge or return them",
	access.Inspect: "look at queues, messages and settings",
	access.Operate: "look at queues, messages and settings, and change them",
}

func showTokens(q *request) (any, error) {
	if !q.may(access.Inspect, "") {
		return nil, errForbidden
	}
	var v tokensView
	v.Added, _ = q.preview.(*addedToken)
	if err := q.readTokens(&v); err != nil {
		if v.Added == nil {
			return nil, err
		}
		v.Unread = err.Error() // nobody can read the secret again
	}
	for _, verb := range access.Verbs() {
		if q.may(verb, "") {
			v.Verbs = append(v.Verbs, verbChoice{verb, verbTexts[verb], slices.Contains(q.query["verb"], string(verb))})
		}
	}
	return v, nil
}

// shownTokens is the greatest number of rows of the page.
const shownTokens = 500

// readTokens reads the tokens that pass the filter. Viewers share what was read.
func (q *request) readTokens(v *tokensView) error {
	all, err := q.tokensOf.get(q.ctx, "", q.changedAt(""), func() ([]admin.StoredToken, error) {
		return q.op.Tokens(q.ctx)
	})
	if err != nil {
		return err
	}
	v.Filter = q.query.Get("filter")
	for _, t := range all {
		text := strings.ToLower(t.Name + "\n" + t.Description + "\n" + strings.Join(t.Queues, "\n") + "\n" + t.Digest)
		switch {
		case !strings.Contains(text, strings.ToLower(v.Filter)):
			v.Hidden++
		case len(v.Tokens) == shownTokens:
			v.More++
		default:
			v.Tokens = append(v.Tokens, t)
		}
	}
	return nil
}

// addToken adds a token. Nobody can give a verb that their own token lacks, a later end, or a higher rate.
func addToken(q *request) (done, error) {
	t := admin.Token{
		Name: strings.TrimSpace(q.query.Get("token")), Description: strings.TrimSpace(q.query.Get("description")),
		Rate: bridge.Rate(strings.TrimSpace(q.query.Get("rate"))),
		Queues: strings.FieldsFunc(q.query.Get("queue"), func(r rune) bool {
			return r == ',' || r == ' ' || r == '\n' || r == '\r' || r == '\t'
		}),
	}
	var faults []error
	for _, text := range q.query["verb"] {
		verb := access.Verb(text)
		t.Verbs = append(t.Verbs, verb)
		if slices.Contains(access.Verbs(), verb) && !q.may(verb, "") {
			faults = append(faults, lua.Invalid("verb", text, "must be a verb of your own token"))
		}
	}
	if text := strings.TrimSpace(q.query.Get("days")); text != "" {
		days, err := strconv.Atoi(text)
		if err != nil || days < 1 || days > 36500 {
			faults = append(faults, lua.Invalid("days", text, "must be a whole number between 1 and 36500"))
		} else {
			now, err := q.op.Time(q.ctx, "")
			if err != nil {
				return done{}, err
			}
			t.Expires = now.Add(time.Duration(days) * 24 * time.Hour)
		}
	}
	if own := q.grant.Expires(); !own.IsZero() && (t.Expires.IsZero() || t.Expires.After(own)) {
		faults = append(faults, lua.Invalid("days", q.query.Get("days"),
			"must end the token no later than your own, which ends at %s", own.UTC().Format(time.RFC3339)))
	}
	faults = append(faults, q.checkRate(t))
	if err := errors.Join(append(faults, t.Check())...); err != nil {
		return done{}, err
	}
	secret, err := q.op.AddToken(q.ctx, t)
	switch {
	case errors.Is(err, admin.ErrTokenExists):
		return done{}, inField("token", err)
	case err != nil:
		return done{}, err
	}
	return done{shown: &addedToken{t.Name, secret}}, nil
}

// checkRate refuses a token that may do something more often than the viewer's own token.
func (q *request) checkRate(t admin.Token) error {
	least, of := time.Duration(0), access.Verb("")
	verbs := t.Verbs
	if slices.Contains(verbs, access.Operate) { // with which the dashboard creates messages, too
		verbs = append(slices.Clone(verbs), access.Publish)
	}
	for _, verb := range verbs {
		if own := q.grant.Interval(verb); own > least {
			least, of = own, verb
		}
	}
	if lua.CheckRate(t.Rate) != nil || t.Rate != "" && t.Rate.Interval() >= least || least == 0 {
		return nil // a wrong rate is another fault
	}
	if own := q.grant.Rate(); own != "" {
		return lua.Invalid("rate", string(t.Rate), "must be at most %s, the rate of your own token", own)
	}
	return lua.Invalid("rate", string(t.Rate), "must be at most 1 in %s, the limit of your own token for %s", least, of)
}

// removeToken revokes a token.
func removeToken(q *request) (done, error) {
	name := q.query.Get("token")
	if err := q.op.RemoveToken(q.ctx, name); err != nil {
		return done{}, fmt.Errorf("remove token %s: %w", name, err)
	}
	return done{
		notice: "The token " + name + " was removed. Every process refuses it within a second.", page: "tokens",
	}, nil
}
