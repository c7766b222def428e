package admin

import (
	"context"

	"github.com/duestream/duestream/bridge/admin/doctor"
)

// Doctor examines the server and the queues of the prefix, and says what is wrong: see doctor.Examine. It writes nothing; Mend
// of what it returns repairs what can be repaired safely. Client and Prefix of the configuration are those of the handle.
func (a *Admin) Doctor(ctx context.Context, cfg doctor.Config) (doctor.Report, error) {
	cfg.Client, cfg.Prefix = a.redis.Client, a.prefix
	return doctor.Examine(ctx, cfg)
}
