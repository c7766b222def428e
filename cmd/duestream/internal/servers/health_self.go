package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/heartbeat"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/notify"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

const (
	renewEvery = time.Second
	renewedFor = 5 * time.Second  // an older file: the process hangs or has ended
	turnedFor  = 30 * time.Second // a turn of the heartbeat's loop takes at most 6 s, whatever Redis does
)

// healthState is the state that serve writes to its health file each second, for `health --self`. A stopped or starved
// process writes nothing. In a process that is stuck, the time of the last turn grows old. A process that waits for
// Redis keeps writing.
type healthState struct {
	State   string `json:"state"` // "starts" (also while it waits for Redis), "runs" or "stops"
	ID      string `json:"id"`
	Host    string `json:"host"`
	PID     int    `json:"pid"`
	Version string `json:"version"`
	Redis   bool   `json:"redis_answers"` // a heartbeat succeeded within the last 5 s
	Written int64  `json:"written_ms"`
	Turned  int64  `json:"turned_ms,omitempty"` // last turn of the heartbeat's loop; 0 = none yet
}

// reporter writes the health file of serve, and tells the service manager.
type reporter struct {
	file   string
	self   bridge.Identity
	log    *slog.Logger
	bridge atomic.Pointer[bridge.Bridge] // nil until the bridge is built
	failed bool

	manager      *notify.Manager // nil: no service manager
	stopping     atomic.Bool
	began        time.Time
	toldOnce     map[string]bool // states that are told once, and were
	status       string          // last status text
	notifyFailed bool            // the last Tell failed
}

// start begins to write the file. The returned function stops that and removes the file.
func (r *reporter) start(ctx context.Context) (stop func()) {
	if r.file == "" && r.manager == nil {
		return func() {}
	}
	r.began, r.toldOnce = time.Now(), map[string]bool{}
	every := renewEvery
	if within := r.manager.Watchdog(); within > 0 {
		every = min(every, within/3)
	}
	renew, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		again := time.NewTicker(every)
		defer again.Stop()
		for stop := ctx.Done(); ; {
			stopping := ctx.Err() != nil
			if r.file != "" {
				r.renew(stopping)
			}
			r.tell(stopping)
			select {
			case <-renew.Done():
				r.tell(true)
				return
			case <-stop:
				stop = nil
			case <-again.C:
			}
		}
	}()
	return func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(renewEvery): // a hanging reporter must not keep the process
		}
		if r.file != "" {
			_ = os.Remove(r.file)
		}
	}
}

// alive returns the reason to restart this process, or nil. It takes the locks that the bridge's loops share.
func (r *reporter) alive() error {
	if b := r.bridge.Load(); b != nil && !r.stopping.Load() {
		return b.Status().Alive()
	}
	return nil
}

// ready returns the reason why this process does not serve now, or nil.
func (r *reporter) ready() error {
	b := r.bridge.Load()
	switch {
	case r.stopping.Load():
		return errors.New("the bridge stops")
	case b == nil:
		return errors.New("the bridge starts, and waits for Redis")
	}
	return b.Status().Ready()
}

// broken returns an error that names the queues no bridge can serve.
func (r *reporter) broken() error {
	if b := r.bridge.Load(); b != nil {
		return b.Status().Broken()
	}
	return nil
}

// renew writes the file. It asks the bridge, under the locks that the bridge's loops share.
func (r *reporter) renew(stopping bool) {
	v := healthState{State: "starts", ID: r.self.ID, Host: r.self.Host, PID: r.self.PID, Version: r.self.Version}
	if b := r.bridge.Load(); b != nil {
		v.State = "runs"
		status := b.Status()
		v.Redis = time.Since(status.LastHeartbeat) < heartbeat.Fresh
		if !status.Turned.IsZero() {
			v.Turned = status.Turned.UnixMilli()
		}
	}
	if stopping {
		v.State = "stops"
	}
	v.Written = time.Now().UnixMilli()
	err := v.write(r.file)
	if err != nil && !r.failed {
		r.log.Warn("cannot write the health file: `duestream health --self` will say that this bridge is not healthy", slog.Any("error", err))
	}
	r.failed = err != nil
}

// write replaces the file in one step: a reader sees the old text or the new one. It follows no symbolic link.
func (v healthState) write(file string) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	fresh := file + ".new"
	_ = os.Remove(fresh) // left by a process that was killed
	f, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(fresh, file)
}

// readHealthState returns what serve wrote last to the file.
func readHealthState(file string) (v healthState, err error) {
	info, err := os.Stat(file)
	if errors.Is(err, os.ErrNotExist) {
		return v, fmt.Errorf("%s does not exist: no bridge runs here that writes it (`duestream serve` with "+
			"DUESTREAM_HEALTH_FILE)", file)
	}
	if err != nil {
		return v, err
	}
	if !info.Mode().IsRegular() {
		return v, fmt.Errorf("%s is not a file", file)
	}
	f, err := os.Open(file)
	if err != nil {
		return v, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return v, fmt.Errorf("%s was not written by `duestream serve`: %w", file, err)
	}
	return v, nil
}

// trouble returns the fault of the process that wrote v, or nil. A step of the clock misleads it for at most a
// second, until v is written again.
func (v healthState) trouble(now time.Time) error {
	written, turned := time.UnixMilli(v.Written), time.UnixMilli(v.Turned)
	if age := now.Sub(written).Abs(); age > renewedFor {
		return fmt.Errorf("the bridge on this machine (pid %d) has said nothing for %s: it hangs, or has ended", v.PID,
			human.Short(age.Round(time.Second)))
	}
	if stuck := written.Sub(turned); v.Turned != 0 && stuck > turnedFor && v.State != "stops" {
		return fmt.Errorf("the bridge on this machine (pid %d) hangs: its heartbeat has not come round for %s", v.PID,
			human.Short(stuck.Round(time.Second)))
	}
	return nil
}

// healthOfSelf runs `health --self`. It does not touch Redis.
func healthOfSelf(a *cli.App) error {
	var s struct {
		HealthFile string `split_words:"true"`
	}
	if err := settings.Fill(&s); err != nil {
		return err
	}
	if s.HealthFile == "" {
		return usage.Errorf("--self needs DUESTREAM_HEALTH_FILE, the same as that of `duestream serve`")
	}
	v, err := readHealthState(s.HealthFile)
	if err != nil {
		return err
	}
	trouble := v.trouble(time.Now())
	report := struct {
		Healthy bool `json:"healthy"`
		healthState
	}{trouble == nil, v}
	err = a.Print(report, func() {
		redis := "Redis answers"
		if !v.Redis {
			redis = "it waits for Redis"
		}
		if trouble == nil {
			fmt.Fprintf(a.Out, "this bridge lives (pid %d, version %s, state: %s), %s\n", v.PID, v.Version, v.State, redis)
		}
	})
	return errors.Join(err, trouble)
}
