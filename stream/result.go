package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/duestream/duestream/lua"
)

// MaxResultBytes is the size limit of the value of SetResult.
const MaxResultBytes = lua.MaxResultBytes

// SetResult sets the result of this message, for a caller who waits for it. The worker stores the value in one step
// with the acknowledgement, so only if the handler then returns nil. Nothing is sent before that. A second call
// replaces the value of the first.
//
// Each group has a value of its own. It is kept for the time that the message asks for (KeepResult). If the message
// asks for no result, ResultAge returns 0, and the value is dropped. A value has at most MaxResultBytes: store larger
// ones elsewhere, and give their address. Error: *InvalidError (ErrInvalid) if the value is too large.
func (m *Message) SetResult(value []byte) error {
	if len(value) > MaxResultBytes {
		return lua.Invalid("result", fmt.Sprintf("%d bytes", len(value)), "must have at most %d bytes", MaxResultBytes)
	}
	if m.saver.delivery != nil {
		m.saver.delivery.result.set(bytes.Clone(value))
	}
	return nil
}

// ResultAge returns for how long the message asks to keep its result; 0 = nobody asks for one.
func (m *Message) ResultAge() time.Duration {
	text := m.Extra[lua.FieldResult]
	if text == "" { // as nearly always; ParseInt would allocate an error
		return 0
	}
	age, err := strconv.ParseInt(text, 10, 64)
	if err != nil || age <= 0 {
		return 0
	}
	return time.Duration(min(age, lua.MaxResultAge.Milliseconds())) * time.Millisecond
}

// asksForResult reports whether the acknowledgement of the delivery stores a result.
func (d *delivery) asksForResult() bool { return !d.foreign() && d.msg.ResultAge() > 0 }

// result is the value that the handler of a delivery set last. Its lock is needed because an abandoned handler may set
// one while the delivery is settled.
type result struct {
	mu    sync.Mutex
	value []byte
}

func (r *result) set(value []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.value = value
}

func (r *result) get() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.value
}

// resultCalls is the number of calls that store results at the same time.
const resultCalls = 32

// ack acknowledges deliveries: those whose messages ask for a result one by one, because each result has a key of its
// own, and all others in one call. An error means that the whole call is to be repeated.
func (p *partitionWorker) ack(ctx context.Context, batch []*delivery, held []lua.Held) ([]bool, error) {
	if !slices.ContainsFunc(batch, func(d *delivery) bool { return d.acked || d.asksForResult() }) {
		return lua.Ack(ctx, p.cfg.Client, p.keys, p.cfg.Group, held)
	}
	won := make([]bool, len(batch))
	var plain []lua.Held
	var asking, rest []int // indexes
	for i, d := range batch {
		switch {
		case d.acked:
			won[i] = true
		case d.asksForResult():
			asking = append(asking, i)
		default:
			plain, rest = append(plain, held[i]), append(rest, i)
		}
	}
	var errs []error
	if len(rest) > 0 {
		some, err := lua.Ack(ctx, p.cfg.Client, p.keys, p.cfg.Group, plain)
		for n, i := range rest {
			if err == nil {
				won[i], batch[i].acked = some[n], some[n]
			}
		}
		errs = append(errs, err)
	}
	var calls sync.WaitGroup
	var mu sync.Mutex
	free := make(chan struct{}, resultCalls)
	for _, i := range asking {
		free <- struct{}{}
		calls.Go(func() {
			defer func() { <-free }()
			d := batch[i]
			one := lua.Held{Entry: d.msg.EntryID, ID: d.msg.ID, Key: d.msg.Extra[lua.FieldKey]}
			ok, err := lua.AckResult(ctx, p.cfg.Client, p.keys, p.cfg.Group, one, d.msg.Attempt, d.msg.ResultAge(),
				d.result.get())
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won[i], d.acked = ok, ok
			}
			errs = append(errs, err)
		})
	}
	calls.Wait()
	return won, errors.Join(errs...)
}
