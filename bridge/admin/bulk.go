package admin

import "github.com/duestream/duestream/scheduler/bulk"

// Bulk cancels, moves or expires many scheduled messages, in bounded steps: see [bulk.Bulk].
type Bulk = bulk.Bulk

// Bulk returns a handle on the schedules of the prefix. Redis is not touched.
func (a *Admin) Bulk() *Bulk {
	return bulk.New(a.redis.Client, a.prefix).By(a.Name()).Observed(a.observer)
}

// BulkFilter selects messages of a schedule: see [bulk.Filter].
type BulkFilter = bulk.Filter

// BulkOptions control a bulk change; the zero value changes all messages at once: see [bulk.Options].
type BulkOptions = bulk.Options

// BulkResult counts the results of a bulk change: see [bulk.Result].
type BulkResult = bulk.Result

// BulkMessage is a scheduled message or retry: see [bulk.Message].
type BulkMessage = bulk.Message
