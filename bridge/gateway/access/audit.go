package access

import (
	"context"
	"log/slog"
)

// Audit tells the log that whoever has a token did something as an operator: a line with audit=true, the name of the token, the
// action and the queue ("" for none), and attrs, like the ID of the request. A secret or a payload must not be among them.
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
