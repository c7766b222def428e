package bench

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// LatenessConfig configures Lateness. Messages follows from rate and duration; Rounds is 1 by default.
type LatenessConfig struct {
	Config
	Rate     int           // messages due per second, evenly spread; default 20,000
	Duration time.Duration // of a round; default 15s
}

// Lateness measures the time from the due time to the start of the handler, for messages that become due at a steady
// rate. They are scheduled beforehand, with due times spread as evenly as milliseconds allow. There is one bridge and
// one worker. With a rate above the server's capacity the queue grows, and the maximum comes near the duration.
//
// With an append-only file, the floor is the delay that the file causes for any command while plain commands append the
// same bytes a second, see aofDelays. Further figures are the difference to that floor, and the bytes appended per
// message from its due time to its acknowledgement.
func Lateness(ctx context.Context, cfg LatenessConfig) (Result, error) {
	cfg.Rate, cfg.Duration = cmp.Or(cfg.Rate, 20_000), cmp.Or(cfg.Duration, 15*time.Second)
	if err := errors.Join(Check("rate", cfg.Rate), CheckDuration(cfg.Duration)); err != nil {
		return Result{}, err
	}
	cfg.Messages = max(1, int(float64(cfg.Rate)*cfg.Duration.Seconds()))
	cfg.Config = cfg.Config.withDefaults(0, 1)
	return on(ctx, cfg.Config, func(ctx context.Context, r *rig) (Result, error) {
		p50, p99, most := lower("lateness_p50", "ms"), lower("lateness_p99", "ms"), lower("lateness_max", "ms")
		above, bytes := lower("lateness_p99_above_floor", "ms"), lower("lateness_appended", "bytes/msg")
		note, err := r.timedRounds(ctx, func(ctx context.Context, c clock) error {
			late, appended, err := r.late(ctx, c, func(i int) time.Duration {
				return time.Duration(i) * time.Second / time.Duration(cfg.Rate)
			})
			if err != nil {
				return err
			}
			if appended < 0 {
				p50.add(quantile(late, 0.5))
				p99.add(quantile(late, 0.99))
				most.add(quantile(late, 1))
				return nil
			}
			floor, err := r.aofDelays(ctx, cfg.Rate, appended, cfg.Duration)
			if err != nil {
				return err
			}
			p50.pair(quantile(late, 0.5), quantile(floor, 0.5))
			p99.pair(quantile(late, 0.99), quantile(floor, 0.99))
			most.pair(quantile(late, 1), quantile(floor, 1))
			above.add(quantile(late, 0.99) - quantile(floor, 0.99))
			bytes.add(appended)
			return nil
		})
		if size, _ := r.aofSize(ctx); size >= 0 && len(bytes.values) == 0 {
			note += "no floor: the append-only file was rewritten meanwhile (see auto-aof-rewrite-percentage)"
		}
		return noted(result("lateness", p50, p99, most, above, bytes), note), err
	})
}

// noted adds notes to a result. Empty notes are left out.
func noted(r Result, notes ...string) Result {
	for _, note := range notes {
		if note != "" {
			r.Notes = append(r.Notes, note)
		}
	}
	return r
}

// BurstConfig configures Burst. Messages is 25,000 by default.
type BurstConfig struct{ Config }

// Burst measures when messages are delivered that are all due in the same millisecond. The floor is the time of the
// drain script alone, plus XREADGROUP with XACK alone, for as many messages.
func Burst(ctx context.Context, cfg BurstConfig) (Result, error) {
	cfg.Config = cfg.Config.withDefaults(25_000, 5)
	return on(ctx, cfg.Config, func(ctx context.Context, r *rig) (Result, error) {
		median, last := lower("burst_median", "ms"), lower("burst_last", "ms")
		note, err := r.timedRounds(ctx, func(ctx context.Context, c clock) error {
			drain, read, err := r.scriptsAlone(ctx, r.xack)
			if err != nil {
				return err
			}
			late, _, err := r.late(ctx, c, func(int) time.Duration { return 0 })
			if err != nil {
				return err
			}
			median.add(quantile(late, 0.5))
			last.pair(quantile(late, 1), 1000*float64(r.Messages)/combinedRate(drain, read))
			return nil
		})
		return noted(result("burst", median, last), note), err
	})
}

// timedRounds runs rounds that need the server's clock. note is the note of clock.
func (r *rig) timedRounds(ctx context.Context, round func(context.Context, clock) error) (note string, err error) {
	c, note, err := r.clock(ctx)
	if err != nil {
		return note, err
	}
	return note, r.rounds("round", func() error { return round(ctx, c) })
}

const maxTries = 4 // attempts to schedule in time, each with twice the time of the attempt before

// late schedules the messages, the i-th due at after(i) from a common start. It returns the lateness of each message,
// sorted, and the bytes per message that the server appended to its file after the scheduling; negative if unknown.
func (r *rig) late(ctx context.Context, c clock, after func(i int) time.Duration) (
	sorted []time.Duration, appended float64, err error,
) {
	if err := r.createGroups(ctx, group); err != nil {
		return nil, 0, err
	}
	late, handled := make([]time.Duration, r.Messages), new(atomic.Int64)
	parts, err := r.process(ctx, bridge.WorkerConfig{Group: group, Handler: func(_ context.Context, m *bridge.Message) error {
		lateness := c.now().Sub(m.Due)
		if i := handled.Add(1); i <= int64(len(late)) {
			late[i-1] = lateness
		}
		return nil
	}})
	if err != nil {
		return nil, 0, err
	}
	lastDue, err := r.scheduleBeforehand(ctx, c, after)
	var sizeBefore float64
	if err == nil {
		sizeBefore, err = r.aofSize(ctx)
	}
	if err == nil {
		err = r.awaitHandled(ctx, time.Until(lastDue)+r.timeLimit(), handled, 1)
	}
	if err == nil {
		appended, err = r.appendedPerMessage(ctx, sizeBefore)
	}
	if err := errors.Join(err, stop(parts...)); err != nil {
		return nil, 0, err
	}
	slices.Sort(late)
	return late, appended, r.clear(ctx)
}

// scheduleBeforehand schedules the messages while the queue is held, and releases the queue before the first message is
// due. It returns the due time of the last message.
func (r *rig) scheduleBeforehand(
	ctx context.Context, c clock, after func(i int) time.Duration,
) (lastDue time.Time, err error) {
	lead := time.Second + time.Duration(r.Messages)*time.Second/50_000
	for range maxTries {
		if err := r.hold(ctx, true); err != nil {
			return lastDue, err
		}
		start := c.now().Add(lead).Truncate(time.Millisecond)
		err := r.fill(ctx, "schedule", r.Messages, func(i int) time.Time {
			return start.Add(after(i)).Truncate(time.Millisecond)
		})
		if err != nil {
			return lastDue, err
		}
		if start.Sub(c.now()) > 300*time.Millisecond {
			return start.Add(after(r.Messages - 1)), r.hold(ctx, false)
		}
		if err := r.clearBelow(ctx, time.Now().Add(tomorrow)); err != nil {
			return lastDue, err
		}
		lead *= 2
	}
	return lastDue, lua.Invalid("messages", strconv.Itoa(r.Messages),
		"must be fewer: scheduling them takes this server longer than %s", lead/2)
}

// quantile returns a quantile in ms.
func quantile(sorted []time.Duration, q float64) float64 {
	return float64(sorted[int(q*float64(len(sorted)-1))].Microseconds()) / 1000
}
