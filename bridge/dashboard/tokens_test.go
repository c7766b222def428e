package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A token that is added on the page must work, its secret must be shown once, and a removed token must be refused.
func TestTokensAreAddedAndRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(access.Verbs(), "*")
	status, text := v.post("do-add-token", url.Values{"token": {"night-shift"}, "verb": {"inspect"},
		"queue": {"orders, mails.*"}, "rate": {"10/s"}, "days": {"30"}, "description": {"<b>on call</b>"}})
	redistest.Want(t, "status", status, http.StatusOK)
	found := regexp.MustCompile(`id="secret">([^<]+)<`).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("the secret is not shown:\n%s", text)
	}
	secret := found[1]
	if !strings.Contains(text, "&lt;b&gt;on call&lt;/b&gt;") {
		t.Errorf("the description is missing, or is markup:\n%s", text)
	}
	if _, again := v.get("tokens"); strings.Contains(again, secret) || !strings.Contains(again, "night-shift") {
		t.Error("the secret is shown again, or the token is missing")
	}
	added := r.stranger()
	if _, text := added.post("login", url.Values{"token": {secret}}); !strings.Contains(text, "night-shift") {
		t.Fatalf("the new token does not log in:\n%s", text)
	}
	tokens, err := r.op.Tokens(t.Context())
	if err != nil || len(tokens) != 2 || strings.Join(tokens[0].Queues, " ") != "orders mails.*" ||
		tokens[0].Expires.IsZero() || tokens[0].Rate != "10/s" {
		t.Errorf("stored tokens: %+v, %v", tokens, err)
	}
	if status, text := v.post("do-remove-token", url.Values{"token": {"night-shift"}}); status != http.StatusOK {
		t.Fatal(text)
	}
	added.eventuallyShows("", "Your login is over")
	_, text = r.stranger().get("")
	lacks(t, text, "Your login is over")
	if r.log.Count(secret) > 0 {
		t.Error("a log line holds the secret")
	}
	redistest.Want(t, "audit lines", r.log.Count("dashboard.do-add-token"), 1)
}

// A viewer must not give rights that their own token lacks, and a wrong form must keep the typed values.
func TestTokensGiveNoMoreThanTheyHave(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Operate}, "*")
	for name, form := range map[string]url.Values{
		"a verb that the viewer lacks": {"token": {"x"}, "queue": {"*"}, "verb": {"publish"}},
		"no verb":                      {"token": {"x"}, "queue": {"*"}},
		"an unknown verb":              {"token": {"x"}, "queue": {"*"}, "verb": {"fly"}},
		"no queue":                     {"token": {"x"}, "verb": {"inspect"}},
		"a wrong name":                 {"token": {"-x"}, "queue": {"*"}, "verb": {"inspect"}},
		"a wrong expiry":               {"token": {"x"}, "queue": {"*"}, "verb": {"inspect"}, "days": {"0"}},
		"a wrong rate":                 {"token": {"x"}, "queue": {"*"}, "verb": {"inspect"}, "rate": {"fast"}},
		"too many queues": {"token": {"x"}, "queue": {strings.Repeat("q,", access.MaxPatterns+1)},
			"verb": {"inspect"}},
	} {
		form.Set("description", "typed before")
		status, text := v.post("do-add-token", form)
		redistest.Want(t, name, status, http.StatusBadRequest)
		if !strings.Contains(text, "typed before") || !strings.Contains(text, "This was refused") {
			t.Errorf("%s: the form is not shown again:\n%s", name, text)
		}
	}
	tokens, err := r.op.Tokens(t.Context())
	if err != nil || len(tokens) != 1 {
		t.Errorf("stored tokens: %+v, %v", tokens, err)
	}
	status, _ := r.viewer([]access.Verb{access.Operate, access.Inspect}, "orders").get("tokens")
	redistest.Want(t, "tokens, for a token of one queue", status, http.StatusForbidden)
}

// A page with many tokens must show some of them, say how many it leaves out, and find the others.
func TestManyTokensAreNotAllShown(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(operate, "*")
	words := []string{"HSET", lua.NewGlobals(r.Prefix).Tokens}
	for i := range shownTokens + 1 {
		words = append(words, fmt.Sprintf("%064x", i),
			fmt.Sprintf(`{"name":"a-%04d","description":"\u202e","verbs":["inspect"],"queues":["q-%d"]}`, i, i))
	}
	r.Do(words...)
	_, text := v.get("tokens")
	contains(t, text, "2 further tokens are not shown", "a-0000", `\u202e`)
	lacks(t, text, fmt.Sprintf("a-%04d", shownTokens), "\u202e")
	_, text = v.get(fmt.Sprintf("tokens?filter=Q-%d", shownTokens))
	contains(t, text, fmt.Sprintf("a-%04d", shownTokens))
	lacks(t, text, "a-0000")
	_, text = v.get("tokens?filter=none-has-this")
	contains(t, text, `class="empty"`)
}

// A name that is taken must be refused as a conflict, and not as a fault of the dashboard.
func TestATokenOfATakenNameIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(operate, "*")
	form := url.Values{"token": {"twice"}, "queue": {"*"}, "verb": {"inspect"}}
	v.post("do-add-token", form)
	status, text := v.post("do-add-token", form)
	redistest.Want(t, "status", status, http.StatusConflict)
	contains(t, text, `id="fault-token"`)
}

// A viewer whose token has a rate must not make a token without one, or with a higher one.
func TestATokenGivesNoHigherRateThanItsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	secret, err := r.op.AddToken(t.Context(), access.Token{Name: "slow", Verbs: operate, Queues: []string{"*"},
		Rate: "60/m", Burst: 100})
	if err != nil {
		t.Fatal(err)
	}
	v := r.stranger()
	v.post("login", url.Values{"token": {secret}})
	for rate, want := range map[string]int{"": http.StatusBadRequest, "2/s": http.StatusBadRequest, "1/s": http.StatusOK,
		"30/m": http.StatusOK} {
		status, text := v.post("do-add-token", url.Values{"token": {"of-" + strings.ReplaceAll(rate, "/", "-per-")},
			"verb": {"inspect"}, "queue": {"*"}, "rate": {rate}})
		redistest.Want(t, "rate "+rate, status, want)
		if want != http.StatusOK {
			contains(t, text, "must be at most 60/m")
		}
	}
}

// A token with limits must not make one that may do the same more often. Regression: only a rate was looked at, so the
// new token had no limit.
func TestATokenWithLimitsMakesNoneWithout(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	secret, err := r.op.AddToken(t.Context(), access.Token{Name: "slow", Verbs: access.Verbs(), Queues: []string{"*"},
		Limits: &access.Limits{Publish: 10, Interval: 60}})
	if err != nil {
		t.Fatal(err)
	}
	v := r.stranger()
	v.post("login", url.Values{"token": {secret}})
	for i, c := range []struct {
		verb, rate string
		want       int
	}{
		{"publish", "", http.StatusBadRequest}, {"publish", "11/m", http.StatusBadRequest},
		{"publish", "10/m", http.StatusOK}, {"operate", "", http.StatusBadRequest}, {"operate", "1/h", http.StatusOK},
		{"inspect", "", http.StatusOK}, {"consume", "", http.StatusOK},
	} {
		status, text := v.post("do-add-token", url.Values{"token": {fmt.Sprint("child-", i)}, "verb": {c.verb},
			"queue": {"*"}, "rate": {c.rate}})
		redistest.Want(t, "status of "+c.verb+" "+c.rate, status, c.want)
		if c.want != http.StatusOK {
			contains(t, text, "must be at most 1 in 6s, the limit of your own token for publish")
		}
	}
}

// A secret that is typed as a name must not stand in the audit log.
func TestASecretInTheFieldOfANameIsNotLogged(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(operate, "*")
	form := url.Values{"token": {access.SecretPrefix + strings.Repeat("x", 43)}, "queue": {"*"}, "verb": {"inspect"}}
	status, _ := v.post("do-add-token", form)
	redistest.Want(t, "add", status, http.StatusBadRequest)
	status, _ = v.post("do-remove-token", form)
	redistest.Want(t, "remove", status, http.StatusNotFound)
	redistest.Want(t, "lines with the secret", r.log.Count("xxxxxxxx"), 0)
}
