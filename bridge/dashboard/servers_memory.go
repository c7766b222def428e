package dashboard

import (
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
)

// This file tells which queues fill the memory of Redis.

// Bounds of a reading of memory. Viewers share each reading.
const (
	memoryEvery    = 30 * time.Second
	memoryMostPart = 500 // partitions; ten commands for each
	memoryRows     = 50
)

// measuredMemory is the memory of queues.
type measuredMemory struct {
	at   time.Time
	rows []admin.QueueMemory
	left int // queues that were not measured
}

// memoryView is the table of memory.
type memoryView struct {
	Rows  []admin.QueueMemory
	More  int // queues that are not shown
	Left  int // queues that were not measured
	Total int64
	At    time.Time
	Err   error
}

// queueMemory returns the memory of the greatest queues, if the address asks for it; else nil.
func (q *request) queueMemory() *memoryView {
	if !q.query.Has("memory") || !q.may(access.Inspect, "") {
		return nil
	}
	b, err := q.memoryOf.get(q.ctx, "", time.Time{}, func() (m measuredMemory, err error) {
		m.rows, m.left, err = q.shared().Memory(q.ctx, memoryMostPart)
		m.at = time.Now()
		return m, err
	})
	if err != nil {
		return &memoryView{Err: err}
	}
	v := &memoryView{Rows: b.rows, Left: b.left, At: b.at}
	for _, one := range b.rows {
		v.Total += max(0, one.Bytes)
	}
	if len(v.Rows) > memoryRows {
		v.Rows, v.More = v.Rows[:memoryRows], len(v.Rows)-memoryRows
	}
	return v
}
