package keeper

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

var shortTries = policy.Policy{
	VisibilityTimeout: 5 * time.Second,
	MaxAttempts:       3,
	RetryMin:          time.Second,
	RetryMax:          time.Minute,
}

// A bridge must write the defaults at its start, leave them alone while they exist, and write them again when they are
// lost.
func TestDefaultsAreWrittenAndStay(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		key := lua.NewGlobals(r.Prefix).Defaults
		attempts := func() string {
			cmd := r.Client.B().Hget().Key(key).Field(policy.SettingMaxAttempts).Build()
			text, _ := r.Client.Do(t.Context(), cmd).ToString()
			return text
		}
		do := func(words ...string) {
			t.Helper()
			if err := r.Client.Do(t.Context(), r.Client.B().Arbitrary(words...).Build()).Error(); err != nil {
				t.Fatal(err)
			}
		}
		d := newDefaultsKeeper(Config{Client: r.Client, Prefix: r.Prefix, Defaults: shortTries}.withDefaults())
		do("HSET", key, policy.SettingMaxAttempts, "9") // as by a bridge that started earlier
		for _, step := range []struct {
			before func()
			want   string // whether the pass wrote the defaults, and the attempts that are then stored
		}{
			{func() {}, "true 3"}, {func() {}, "false 3"},
			{func() { do("HSET", key, policy.SettingMaxAttempts, "7") }, "false 7"}, // as by a bridge that started later
			{func() { do("DEL", key) }, "true 3"}, {func() {}, "false 3"},
		} {
			step.before()
			wrote, err := d.pass(t.Context())
			if got := fmt.Sprint(wrote, " ", attempts()); err != nil || got != step.want {
				t.Errorf("%s %v, want %s", got, err, step.want)
			}
		}
	})
}

// A bridge without permission to write the defaults must log that once, and write them when it gets the permission.
// Regression: the bridge logged nothing.
func TestDefaultsThatMayNotBeWrittenAreReportedOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	r := newRig(t, server)
	allow := func(rights ...string) {
		t.Helper()
		words := append([]string{"ACL", "SETUSER", "bridge", "on", ">x", "~*", "+@all"}, rights...)
		if err := r.Client.Do(t.Context(), r.Client.B().Arbitrary(words...).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	allow("-evalsha", "-eval")
	denied := server.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "bridge", "x" })
	var log queuetest.LogBook
	k, err := New(Config{Client: denied, Prefix: r.Prefix, Logger: log.Logger(), Defaults: shortTries})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = k.Run(t.Context()) }()
	refusals := func() (n int64) {
		list, err := r.Client.Do(t.Context(), r.Client.B().Arbitrary("ACL", "LOG").Build()).ToArray()
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range list { // the server lists equal refusals once, with their number
			fields, _ := one.AsMap()
			count := fields["count"]
			c, _ := count.AsInt64()
			n += c
		}
		return n
	}
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { return refusals() >= 5, fmt.Sprint(refusals(), " refusals") })
	if n := log.Count("writing the default policy is failing"); n != 1 {
		t.Errorf("%d lines say that it is failing", n)
	}
	allow("+evalsha", "+eval")
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return log.Count("writing the default policy works again") == 1, "the log does not say that writing works again"
	})
	p, _, err := policy.Read(t.Context(), r.Client, r.Prefix, r.Queue, "")
	if err != nil || p.MaxAttempts != shortTries.MaxAttempts || p.VisibilityTimeout != shortTries.VisibilityTimeout {
		t.Errorf("%+v %v", p, err)
	}
	redistest.Want(t, "turns", fmt.Sprint(log.Turns()), "[failing again]")
}

// Invalid defaults must be refused before the keeper runs.
func TestKeeperRefusesDefaultsThatDoNotCount(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	_, err := New(Config{Client: server.Client(t), Defaults: policy.Policy{MaxAttempts: -1}})
	if err == nil {
		t.Error("accepted")
	}
}
