package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// During a pause workers must finish the messages that they hold, and take no new ones. After the pause they continue.
func TestWorkersKeepAPauseAndGoOn(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Groups("g")
		release := make(chan struct{})
		var begun, done atomic.Int64
		w, _ := r.start(WorkerConfig{Concurrency: 2, Handler: func(ctx context.Context, m *Message) error {
			begun.Add(1)
			select {
			case <-release:
			case <-ctx.Done():
			}
			done.Add(1)
			return nil
		}})
		for i := range 20 {
			r.Ready(fmt.Sprint("m", i))
		}
		redistest.Eventually(t, 5*time.Second, func() (bool, string) {
			return begun.Load() == 2, fmt.Sprint(begun.Load(), " begun")
		})
		for _, want := range []bool{true, false} { // the second call changes nothing
			changed, err := PauseWorkers(t.Context(), r.Client, r.Prefix, r.Queue, "")
			if err != nil || changed != want {
				t.Fatal(changed, err)
			}
		}
		redistest.Eventually(t, 2*policy.RefreshInterval, func() (bool, string) { // a busy worker reads the policy regularly
			return firstPartition(w).policy.Load().HeldWorkers, "the worker has not seen the pause"
		})
		close(release)
		redistest.Eventually(t, 5*time.Second, func() (bool, string) {
			return done.Load() >= 2 && r.Number("XLEN", r.Keys.Stream) == 20-done.Load(), fmt.Sprint(done.Load(), " done")
		})
		if n := begun.Load(); n > 4 { // the two before the pause, and two of a read that was in flight
			t.Errorf("%d of 20 were begun in a pause", n)
		}
		changed, err := Pause(t.Context(), r.Client, r.Prefix, r.Queue, "", false) // false: resume the queue
		if err != nil || !changed {
			t.Fatal(changed, err)
		}
		redistest.Eventually(t, 5*time.Second, func() (bool, string) {
			return done.Load() == 20, fmt.Sprint(done.Load(), " done")
		})
		redistest.Want(t, "settings", r.Number("EXISTS", r.Keys.Policy), int64(0))
	})
}

// The limits of the flow (rate, burst, free retries, ready messages) must be written and read like other settings of a
// whole queue. A group cannot have them. Values out of range are refused, and ignored with a warning if they are
// stored.
func TestFlowSettings(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	rate, burst, free, limit := lua.Rate("30/m"), 7, true, 100
	all := policy.Update{Rate: &rate, Burst: &burst, FreeRetries: &free, ReadyLimit: &limit}
	if err := WritePolicy(t.Context(), r.Client, r.Prefix, r.Queue, "", all); err != nil {
		t.Fatal(err)
	}
	p, warning, err := policy.Read(t.Context(), r.Client, r.Prefix, r.Queue, "g")
	if err != nil || warning != nil || p.Rate != rate || p.Burst != burst || !p.FreeRetries || p.ReadyLimit != limit {
		t.Errorf("%+v, %v, %v", p, warning, err)
	}
	text, _ := json.Marshal(p)
	var again policy.Policy
	if err := json.Unmarshal(text, &again); err != nil || again != p {
		t.Errorf("%s: %+v, %v", text, again, err)
	}
	err = WritePolicy(t.Context(), r.Client, r.Prefix, r.Queue, "g", all)
	for _, name := range []string{
		policy.SettingRate,
		policy.SettingBurst,
		policy.SettingFreeRetries,
		policy.SettingReadyLimit,
	} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("of a group: %v", err)
		}
	}
	tooFast, tooMany, negative := lua.Rate("1000001"), lua.MaxBurst+1, -1
	outOfRange := policy.Update{Rate: &tooFast, Burst: &tooMany, ReadyLimit: &negative}
	err = WritePolicy(t.Context(), r.Client, r.Prefix, r.Queue, "", outOfRange)
	for _, says := range []string{`rate "1000001": must be`, `burst "1000001": must be`, `ready_limit "-1": must be`} {
		if !errors.Is(err, lua.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v", err)
		}
	}
	r.Policy(map[string]string{policy.SettingRate: "fast", policy.SettingBurst: "-1"})
	p, warning, _ = policy.Read(t.Context(), r.Client, r.Prefix, r.Queue, "")
	if p.Rate != "" || p.Burst != 0 || warning == nil {
		t.Errorf("%+v, %v", p, warning)
	}
	r.Policy(map[string]string{policy.SettingRate: "12"})
	p, _, _ = policy.Read(t.Context(), r.Client, r.Prefix, r.Queue, "")
	redistest.Want(t, "a bare number is a rate per second", p.Rate, lua.Rate("12/s"))
}
