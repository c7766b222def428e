package servers

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/duestream/duestream/bridge/gateway"
)

// ServeGateway answers requests that come to a socket, until ctx ends.
func ServeGateway(ctx context.Context, socket net.Listener, g *gateway.Gateway) error {
	h := &httpSide{shutdownTimeout: 20 * time.Second, log: slog.New(slog.DiscardHandler), socket: socket}
	return h.serve(ctx, g)
}
