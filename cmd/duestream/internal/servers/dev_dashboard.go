package servers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/dashboard"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/listener"
)

const (
	devToken    = "dev"            // name of the token that opens the dashboard of dev
	devShutdown = 10 * time.Second // then changes in flight are cut off
)

// devDashboard is the dashboard of dev, on a port of 127.0.0.1.
type devDashboard struct {
	dashboard *dashboard.Dashboard
	listener  *listener.Listener
	secret    string // of its token
}

// openDevDashboard makes a token that may do everything, and serves the dashboard until it is closed. A token that an
// earlier dev left in a kept data directory is replaced.
func openDevDashboard(
	ctx context.Context, a *cli.App, r *bridge.Redis, op *admin.Admin, port int, log *slog.Logger,
) (*devDashboard, error) {
	l, err := listener.ListenWith(net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), log,
		listener.Options{What: "the dashboard", Connections: dashboardConnections})
	if err != nil {
		return nil, err
	}
	p := &devDashboard{listener: l}
	if err := p.start(ctx, a, r, op, log); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// start makes the token, and begins to serve.
func (p *devDashboard) start(
	ctx context.Context, a *cli.App, r *bridge.Redis, op *admin.Admin, log *slog.Logger,
) error {
	if err := op.RemoveToken(ctx, devToken); err != nil && !errors.Is(err, admin.ErrNoToken) {
		return err
	}
	store, err := access.Open(access.Config{Client: r.Client, Prefix: a.Prefix, Log: log})
	if err != nil {
		return err
	}
	p.secret, err = op.AddToken(ctx, admin.Token{Name: devToken, Verbs: admin.Verbs(), Queues: []string{"*"}})
	if err != nil {
		return err
	}
	p.dashboard, err = dashboard.New(dashboard.Config{Redis: r, Prefix: a.Prefix, Access: store, Version: a.Version,
		Logger: log, LoginByAddress: true})
	if err != nil {
		return err
	}
	// The path keeps the cookie of the dashboard from other servers of this machine, which the browser cannot tell apart.
	p.listener.Handle(dashboardPath+"/", http.StripPrefix(dashboardPath, p.dashboard))
	p.listener.Handle("GET /{$}", http.RedirectHandler(dashboardPath+"/", http.StatusFound))
	p.listener.Serve()
	return nil
}

// address returns the address that logs in. A browser keeps what stands behind # to itself, and the script of the login
// page sends it as the token.
func (p *devDashboard) address() string {
	return fmt.Sprintf("http://%s%s/login#%s", p.listener.Addr(), dashboardPath, p.secret)
}

// close ends the dashboard.
func (p *devDashboard) close() {
	if p.dashboard != nil {
		ctx, end := context.WithTimeout(context.Background(), devShutdown)
		defer end()
		_ = p.dashboard.Shutdown(ctx)
	}
	p.listener.Close()
}
