package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// If several operators add a token of one name at once, exactly one succeeds, and the others get ErrExists.
func TestANameIsGivenOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	token := Token{Name: "a", Verbs: Verbs(), Queues: []string{"*"}}
	var all sync.WaitGroup
	var mu sync.Mutex
	added := 0
	for range 8 {
		all.Go(func() {
			_, err := Add(t.Context(), r.client, r.prefix, token)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				added++
			} else if !errors.Is(err, ErrExists) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	redistest.Want(t, "added", added, 1)
}

// Concurrent calls that make tokens, in this process and in others, all succeed.
func TestManyTokensAreMadeAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			one := Token{Name: fmt.Sprint(i), Verbs: Verbs(), Queues: []string{"*"}}
			if _, err := Add(t.Context(), r.client, r.prefix, one); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	left, err := List(t.Context(), r.client, r.prefix)
	redistest.Want(t, "made", fmt.Sprint(len(left), err), "200 <nil>")
}

// If several gateways start at once on an empty Redis, exactly one of them makes the first token. The others get "".
func TestTheFirstTokenIsMadeOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		r := newRig(t, server)
		var all sync.WaitGroup
		secrets := make(chan string, 8)
		for range cap(secrets) {
			all.Go(func() {
				secret, err := r.store(r.client, "").First(t.Context())
				if err != nil {
					t.Error(err)
				}
				secrets <- secret
			})
		}
		all.Wait()
		close(secrets)
		first := ""
		for secret := range secrets { // all but one are ""
			if first += secret; len(first) > secretBytes {
				t.Fatal("two first tokens")
			}
		}
		g := r.granted(r.store(r.client, ""), first)
		for _, verb := range Verbs() {
			if !g.May(verb, "") || !g.May(verb, "x") {
				t.Error("the first token does not allow", verb)
			}
		}
		if secret, err := r.store(r.client, "").First(t.Context()); secret != "" || err != nil {
			t.Error("a second first token was made", err)
		}
	})
}

// Add names the invalid field of a token, and stores nothing. The error stays short, however long the bad value is.
func TestABadTokenIsRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	good := func() Token { return Token{Name: "a", Verbs: []Verb{Publish}, Queues: []string{"*"}} }
	for field, spoil := range map[string][]func(*Token){
		"token": {
			func(t *Token) { t.Name = "" }, func(t *Token) { t.Name = ".." }, func(t *Token) { t.Name = "a\x00" },
			func(t *Token) { t.Name = "{a}" }, func(t *Token) { t.Name = "-a" }, func(t *Token) { t.Name = "a\n" },
			func(t *Token) { t.Name = strings.Repeat("a", 10<<20) },
		},
		"description": {
			func(t *Token) { t.Description = strings.Repeat("a", MaxDescriptionBytes+1) },
			func(t *Token) { t.Description = "\xff" }, func(t *Token) { t.Description = "a\x1b[1m" },
		},
		"verb": {
			func(t *Token) { t.Verbs = nil }, func(t *Token) { t.Verbs = []Verb{"Publish"} },
			func(t *Token) { t.Verbs = make([]Verb, 1<<20) },
		},
		"queue": {
			func(t *Token) { t.Queues = nil }, func(t *Token) { t.Queues = []string{""} },
			func(t *Token) { t.Queues = []string{"a/1"} }, func(t *Token) { t.Queues = []string{"{a}"} },
			func(t *Token) { t.Queues = []string{"a\x00*"} }, func(t *Token) { t.Queues = make([]string, 1<<20) },
			func(t *Token) { t.Queues = []string{strings.Repeat("*", lua.MaxQueueBytes+1)} },
		},
		"rate":  {func(t *Token) { t.Rate = "0" }, func(t *Token) { t.Rate = "5/d" }, func(t *Token) { t.Rate = "-1/s" }},
		"burst": {func(t *Token) { t.Burst = 5 }, func(t *Token) { t.Rate, t.Burst = "5/s", lua.MaxBurst+1 }},
		"expires": {
			func(t *Token) { t.Expires = time.Unix(1, 0) }, func(t *Token) { t.Expires = time.Now().Add(-time.Hour) },
		},
	} {
		for i, spoil := range spoil {
			token := good()
			spoil(&token)
			_, err := Add(t.Context(), r.client, r.prefix, token)
			var bad *lua.InvalidError
			if !errors.As(err, &bad) || bad.Field != field || len(err.Error()) > 2000 {
				t.Errorf("%s %d: %.300v", field, i, err)
			}
		}
	}
	if list, err := List(t.Context(), r.client, r.prefix); len(list) != 0 || err != nil {
		t.Error(list, err)
	}
}

// MaxTokens tokens can be stored, and the one after them is refused.
func TestThereIsRoomForTenThousandTokens(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	words := []string{"HSET", r.key}
	for i := range MaxTokens - 1 {
		_, d := newSecret()
		words = append(words, d.String(), fmt.Sprintf(`{"name":"t%d","verbs":["publish"],"queues":["q%d.*"]}`, i, i))
	}
	r.do(words...)
	secret := r.add(Token{Name: "last"})
	r.granted(r.store(r.client, ""), secret)
	_, err := Add(t.Context(), r.client, r.prefix, Token{Name: "more", Verbs: Verbs(), Queues: []string{"*"}})
	if !errors.Is(err, lua.ErrInvalid) || !strings.Contains(err.Error(), "10000") {
		t.Error(err)
	}
	if list, err := List(t.Context(), r.client, r.prefix); len(list) != MaxTokens || err != nil {
		t.Error(len(list), err)
	}
}

// On a full server no token can be made, but every token can be revoked.
func TestAFullServerHasTokensRevoked(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	token := Token{Name: "shop", Verbs: Verbs(), Queues: []string{"*"}}
	if _, err := Add(t.Context(), r.client, r.prefix, token); err != nil {
		t.Fatal(err)
	}
	fill := r.client.B().Arbitrary("CONFIG", "SET", "maxmemory", "1").Build()
	if err := r.client.Do(t.Context(), fill).Error(); err != nil {
		t.Fatal(err)
	}
	token.Name = "other"
	if _, err := Add(t.Context(), r.client, r.prefix, token); !errors.Is(err, lua.ErrFull) ||
		!strings.Contains(err.Error(), "token other was not written") || lua.Hint(err) == "" {
		t.Errorf("add: %v", err)
	}
	if err := Remove(t.Context(), r.client, r.prefix, "shop"); err != nil {
		t.Errorf("remove: %v", err)
	}
	all, err := List(t.Context(), r.client, r.prefix)
	redistest.Want(t, "tokens left", fmt.Sprint(len(all), err), "0 <nil>")
}

// Redis, the log and the file of tokens hold no secret.
func TestNoSecretIsWrittenAnywhere(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	s := r.store(r.client, "")
	secret := r.add(Token{Name: "a", Verbs: Verbs(), Description: "the shop"})
	g := r.granted(s, secret)
	wrong, d := newSecret()
	r.do("HSET", r.key, d.String(), `{"name":5}`) // an invalid token, so that a use of it writes a warning
	r.refused(s, wrong, ErrRefused)
	s.Audit(g, "purge", "orders", slog.String("request_id", "r1"))
	s.Audit(nil, "stats", "")
	stored, err := r.client.Do(context.Background(), r.client.B().Hgetall().Key(r.key).Build()).AsStrMap()
	if err != nil {
		t.Fatal(err)
	}
	all := fmt.Sprint(stored, r.log())
	for _, secret := range []string{secret, wrong} {
		if strings.Contains(all, secret) || strings.Contains(all, strings.TrimPrefix(secret, SecretPrefix)) {
			t.Error("a secret is written: ", all)
		}
	}
	for _, want := range []string{"audit=true token=a action=purge queue=orders request_id=r1",
		`audit=true token="" action=stats`, "level=WARN"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in %s", want, all)
		}
	}
}

// An empty name must remove nothing. Regression: it removed all tokens that this release cannot read, such as those of
// a newer one.
func TestAnEmptyNameRemovesNoToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	_, d := newSecret()
	field := d.String()
	if err := r.client.Do(t.Context(), r.client.B().Hset().Key(r.key).FieldValue().FieldValue(field, `{"new":1}`).
		Build()).Error(); err != nil {
		t.Fatal(err)
	}
	if err := Remove(t.Context(), r.client, r.prefix, ""); !errors.Is(err, ErrNoToken) {
		t.Errorf("an empty name: %v", err)
	}
	if list, err := List(t.Context(), r.client, r.prefix); len(list) != 1 || err != nil {
		t.Errorf("tokens left: %v, %v", list, err)
	}
	if err := Remove(t.Context(), r.client, r.prefix, field); err != nil {
		t.Errorf("by its digest: %v", err)
	}
}

// A secret that somebody gives as the name of a token must be refused, and must not be in the error.
func TestASecretIsNoName(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	secret, _ := newSecret()
	_, err := Add(t.Context(), r.client, r.prefix, Token{Name: secret, Verbs: []Verb{Inspect}, Queues: []string{"*"}})
	if !errors.Is(err, lua.ErrInvalid) || strings.Contains(err.Error(), secret) {
		t.Error(err)
	}
}
