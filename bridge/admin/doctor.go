package admin

import (
	"context"

	"github.com/duestream/duestream/bridge/admin/doctor"
)

// Doctor examines the server and the queues of the prefix, and reports what is wrong: see doctor.Examine. It writes
// nothing. Mend of the report makes the safe repairs. The handle sets Client and Prefix of the configuration.
func (a *Admin) Doctor(ctx context.Context, cfg doctor.Config) (doctor.Report, error) {
	cfg.Client, cfg.Prefix = a.redis.Client, a.prefix
	return doctor.Examine(ctx, cfg)
}
