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
	writeInterval = time.Second
	maxFileAge    = 5 * time.Second // if the file is older, the process hangs or has ended

	// maxTurnAge is the longest time between two turns of the heartbeat's loop in a healthy process. A turn takes at
	// most 6 s, whatever Redis does.
	maxTurnAge = 30 * time.Second
)

// healthState is the state that serve writes to its health file each second, for `health --self`. A stopped or starved
// process writes nothing. A process whose loops hang writes the file, but the time of the last turn stays the same. A
// process that waits for Redis is healthy.
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
	file        string
	self        bridge.Identity
	log         *slog.Logger
	bridge      atomic.Pointer[bridge.Bridge] // nil until the bridge is built
	writeFailed bool                          // the last write of the file failed

	manager      *notify.Manager // nil without a service manager
	stopping     atomic.Bool
	began        time.Time
	toldOnce     map[string]bool // states that are told only once, and were told
	status       string          // last status text
	notifyFailed bool            // the last Tell failed
}

// start begins to write the file. The returned function stops that and removes the file.
func (r *reporter) start(ctx context.Context) (stop func()) {
	if r.file == "" && r.manager == nil {
		return func() {}
	}
	r.began, r.toldOnce = time.Now(), map[string]bool{}
	interval := writeInterval
	if watchdog := r.manager.Watchdog(); watchdog > 0 {
		interval = min(interval, watchdog/3)
	}
	reporting, cancel := context.WithCancel(context.WithoutCancel(ctx)) // until the process has stopped
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for stopBegins := ctx.Done(); ; {
			stopping := ctx.Err() != nil
			if r.file != "" {
				r.writeFile(stopping)
			}
			r.tell(stopping)
			select {
			case <-reporting.Done():
				r.tell(true)
				return
			case <-stopBegins:
				stopBegins = nil // this case reports the beginning of a stop at once, and only once
			case <-ticker.C:
			}
		}
	}()
	return func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(writeInterval): // a hanging reporter must not keep the process
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

// writeFile writes the file. It asks the bridge, under the locks that the bridge's loops share.
func (r *reporter) writeFile(stopping bool) {
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
	if err != nil && !r.writeFailed {
		r.log.Warn("cannot write the health file: `duestream health --self` will say that this bridge is not healthy",
			slog.Any("error", err))
	}
	r.writeFailed = err != nil
}

// write replaces the file in one step: a reader sees the old text or the new one. It follows no symbolic link.
func (v healthState) write(file string) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	newFile := file + ".new"
	_ = os.Remove(newFile) // a process that was killed may have left it
	f, err := os.OpenFile(newFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(newFile, file)
}

// readHealthState returns the state that serve wrote last to the file.
func readHealthState(file string) (v healthState, err error) {
	info, err := os.Stat(file)
	if errors.Is(err, os.ErrNotExist) {
		return v, fmt.Errorf("%s does not exist: no `duestream serve` with this DUESTREAM_HEALTH_FILE runs here", file)
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

// trouble returns the fault of the process that wrote v, or nil. After a step of the clock the result may be wrong for
// at most a second, until v is written again.
func (v healthState) trouble(now time.Time) error {
	written, turned := time.UnixMilli(v.Written), time.UnixMilli(v.Turned)
	if age := now.Sub(written).Abs(); age > maxFileAge {
		return fmt.Errorf("the bridge on this machine (pid %d) has said nothing for %s: it hangs, or has ended", v.PID,
			human.Short(age.Round(time.Second)))
	}
	if stuck := written.Sub(turned); v.Turned != 0 && stuck > maxTurnAge && v.State != "stops" {
		return fmt.Errorf("the bridge on this machine (pid %d) hangs: its heartbeat loop has made no turn for %s", v.PID,
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
