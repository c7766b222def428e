package bridge

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// LogSent returns middleware that logs each message: at info if it was stored or is a duplicate, else at warn. The line
// has the queue, the kind, the ID and the due time, and the error if there is one. It has no payload.
func LogSent(log *slog.Logger) SendMiddleware {
	return func(next Sender) Sender {
		return func(ctx context.Context, queue string, messages []NewMessage) ([]Result, error) {
			kinds := make([]string, len(messages)) // taken before next, which may change the messages
			for i := range messages {
				kinds[i] = messages[i].Headers[KindHeader]
			}
			results, err := next(ctx, queue, messages)
			if err != nil {
				log.LogAttrs(ctx, slog.LevelWarn, "not scheduled", slog.String("queue", queue),
					slog.Int("count", len(messages)), slog.Any("error", err))
				return results, err
			}
			for i, result := range results[:min(len(results), len(kinds))] {
				logSent(ctx, log, queue, kinds[i], result)
			}
			return results, nil
		}
	}
}

func logSent(ctx context.Context, log *slog.Logger, queue, kind string, r Result) {
	attrs := []slog.Attr{slog.String("queue", queue), slog.String("kind", kind), slog.String("id", r.ID)}
	switch {
	case r.Err == nil:
		log.LogAttrs(ctx, slog.LevelInfo, "scheduled", append(attrs, slog.Time("due", r.Due))...)
	case errors.Is(r.Err, ErrDuplicate):
		log.LogAttrs(ctx, slog.LevelInfo, "not scheduled: a duplicate", append(attrs, slog.Any("error", r.Err))...)
	default:
		log.LogAttrs(ctx, slog.LevelWarn, "not scheduled", append(attrs, slog.Any("error", r.Err))...)
	}
}

// LogHandled returns middleware that logs each delivery at info when its handler has returned: queue, group, kind, ID,
// attempt, outcome and duration, and the error if there is one. It has no payload. A worker with a Logger logs panics,
// timeouts and dead letters by itself.
func LogHandled(log *slog.Logger) Middleware {
	return func(next Handler) Handler {
		return func(ctx context.Context, m *Message) error {
			began := time.Now()
			err := next(ctx, m)
			outcome := OutcomeOf(err)
			attrs := []slog.Attr{slog.String("queue", m.Queue), slog.String("group", m.Group),
				slog.String("kind", m.Headers[KindHeader]), slog.String("id", m.ID), slog.Int("attempt", m.Attempt),
				slog.String("outcome", string(outcome.Action)), slog.Duration("took", time.Since(began))}
			if outcome.Err != nil {
				attrs = append(attrs, slog.Any("error", outcome.Err))
			}
			log.LogAttrs(ctx, slog.LevelInfo, "handled", attrs...)
			return err
		}
	}
}
