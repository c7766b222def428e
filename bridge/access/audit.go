package access

import (
	"context"
	"log/slog"
)

// Audit logs an operator's action: a line with audit=true, the name of the token, the action, the queue ("" for none)
// and attrs, such as the ID of the request. The attrs must not hold a secret or a payload.
func (s *Store) Audit(g *Grant, action, queue string, attrs ...slog.Attr) {
	name := ""
	if g != nil {
		name = g.Name()
	}
	line := []slog.Attr{slog.Bool("audit", true), slog.String("token", name), slog.String("action", action)}
	if queue != "" {
		line = append(line, slog.String("queue", queue))
	}
	s.log.LogAttrs(context.Background(), slog.LevelInfo, "an operator acts", append(line, attrs...)...)
}
