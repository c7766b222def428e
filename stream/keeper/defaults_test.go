package keeper

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

var shortTries = stream.Policy{VisibilityTimeout: 5 * time.Second, MaxAttempts: 3, RetryMin: time.Second, RetryMax: time.Minute}

// The defaults are written at the start, left alone while they exist, and written again when they are lost.
func TestDefaultsAreWrittenAndStay(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		key := lua.NewGlobals(r.Prefix).Defaults
		attempts := func() string {
			text, _ := r.Client.Do(t.Context(), r.Client.B().Hget().Key(key).Field(stream.SettingMaxAttempts).Build()).ToString()
			return text
		}
		do := func(words ...string) {
			t.Helper()
			if err := r.Client.Do(t.Context(), r.Client.B().Arbitrary(words...).Build()).Error(); err != nil {
				t.Fatal(err)
			}
		}
		d := newDefaultsKeeper(Config{Client: r.Client, Prefix: r.Prefix, Defaults: shortTries}.withDefaults())
		do("HSET", key, stream.SettingMaxAttempts, "9") // by a bridge that started earlier
		for _, step := range []struct {
			before func()
			want   string
		}{
			{func() {}, "true 3"}, {func() {}, "false 3"},
			{func() { do("HSET", key, stream.SettingMaxAttempts, "7") }, "false 7"}, // by one that started later
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

// A bridge without permission to write the defaults used to be silent for ever. Now it logs that once, and continues
// when it gets the permission.
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
		for _, one := range list { // the server counts equal ones as one
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
		return log.Count("writing the default policy works again") == 1, "it does not say that it works again"
	})
	p, _, err := stream.ReadPolicy(t.Context(), r.Client, r.Prefix, r.Queue, "")
	if err != nil || p.MaxAttempts != shortTries.MaxAttempts || p.VisibilityTimeout != shortTries.VisibilityTimeout {
		t.Errorf("%+v %v", p, err)
	}
	redistest.Want(t, "turns", fmt.Sprint(log.Turns()), "[failing again]")
}

func TestKeeperRefusesDefaultsThatDoNotCount(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	_, err := New(Config{Client: server.Client(t), Defaults: stream.Policy{MaxAttempts: -1}})
	if err == nil {
		t.Error("accepted")
	}
}
