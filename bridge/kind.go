package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"

	"github.com/duestream/duestream/lua"
)

// Kind describes the messages of one purpose: their name, their queue, and the Go type of their payloads. Declare each
// kind once, and use it on both sides:
//
//	var CloseOrder = bridge.Kind[Order]{Name: "close-order", Queue: "orders"}
//
//	receipt, err := CloseOrder.Schedule(ctx, client, Order{ID: 42}, bridge.In(30*time.Minute))
//
//	CloseOrder.Handle(mux, func(ctx context.Context, d *bridge.Delivery[Order]) error { … })
//
// A kind is a value that is never changed, so any number of goroutines may use it.
type Kind[T any] struct {
	// Name is at most 128 bytes of UTF-8 without control characters. It is sent in the header KindHeader. A kind without a
	// name stands for the messages of its queue that have no such header.
	Name  string
	Queue string
	Codec Codec[T] // nil = JSON

	// UniqueBy returns the values that say which thing a message is about, such as the ID of an order. At most one
	// message about the same thing is scheduled. A further message is refused with ErrDuplicate. With the option
	// Replace, it replaces the scheduled one. While a message is ready, runs or waits for its retry, one further
	// message about the same thing is stored, and runs after it. So a change during a run leads to one more run. No
	// values: the kind has one message at a time. nil: messages are not unique.
	//
	// The values become the ID and the ordering key (see UniqueID), so the options WithID and Key are refused. The JSON
	// of a value must not change: give a time as Unix seconds, for example. With the option Dedup, further messages
	// about the same thing are refused until the window ends, also during and after the run.
	UniqueBy func(T) []any
}

// Codec converts values to payloads and back.
type Codec[T any] interface {
	Encode(value T) (payload []byte, err error)
	// Decode must not keep payload.
	Decode(payload []byte) (value T, err error)
}

// CodecOf returns a codec of two functions, such as those of a protobuf library:
//
//	bridge.CodecOf(
//		func(o *pb.Order) ([]byte, error) { return proto.Marshal(o) },
//		func(payload []byte) (*pb.Order, error) { o := &pb.Order{}; return o, proto.Unmarshal(payload, o) })
func CodecOf[T any](encode func(T) ([]byte, error), decode func([]byte) (T, error)) Codec[T] {
	return functionCodec[T]{encode, decode}
}

// RawCodec leaves payloads as they are.
func RawCodec() Codec[[]byte] {
	return CodecOf(
		func(value []byte) ([]byte, error) { return value, nil },
		func(payload []byte) ([]byte, error) { return bytes.Clone(payload), nil })
}

type functionCodec[T any] struct {
	encode func(T) ([]byte, error)
	decode func([]byte) (T, error)
}

func (c functionCodec[T]) Encode(value T) ([]byte, error)             { return c.encode(value) }
func (c functionCodec[T]) Decode(payload []byte) (value T, err error) { return c.decode(payload) }

// jsonCodec reads and writes one JSON value, as package encoding/json does. It ignores unknown fields, so that a new
// producer may send fields that an old worker does not know.
type jsonCodec[T any] struct{}

// Encode passes a pointer, because Marshal calls a method MarshalJSON with a pointer receiver only through a pointer.
func (jsonCodec[T]) Encode(value T) ([]byte, error) {
	payload, err := json.Marshal(&value)
	if err == nil && isNull(payload) && !nullIsValue[T]() {
		err = errors.New("it is null in JSON")
	}
	return payload, err
}

func (jsonCodec[T]) Decode(payload []byte) (value T, err error) {
	if isNull(payload) && !nullIsValue[T]() {
		return value, fmt.Errorf("null is no %s", reflect.TypeFor[T]())
	}
	err = json.Unmarshal(payload, &value)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
		err = fmt.Errorf("field %q: %s is no %s", wrong.Field, wrong.Value, wrong.Type)
	}
	return value, err
}

func isNull(payload []byte) bool { return string(bytes.TrimSpace(payload)) == "null" }

// nullIsValue reports whether JSON null is a value of T, as it is for a map or a slice. It is not a value of a struct,
// because Unmarshal would leave the struct empty without an error. It is not a value of a pointer, because a handler
// would panic at nil.
func nullIsValue[T any]() bool {
	var zero T
	payload, err := json.Marshal(&zero)
	return err == nil && isNull(payload) && reflect.TypeFor[T]().Kind() != reflect.Pointer
}

func (k Kind[T]) codec() Codec[T] {
	if k.Codec == nil {
		return jsonCodec[T]{}
	}
	return k.Codec
}

// Schedule encodes the value, and sends it as Client.Schedule does. ErrInvalid also means that the value cannot be
// encoded, or that an option sets KindHeader.
func (k Kind[T]) Schedule(ctx context.Context, c *Client, value T, options ...Option) (Receipt, error) {
	m, err := k.Message(value, options...)
	if err != nil {
		return Receipt{}, err
	}
	return c.Send(ctx, k.Queue, m)
}

// Message returns the message that Schedule sends, for Client.SendBatch with the queue of the kind. Its error names the
// faults of the kind and the value; SendBatch names those of the options.
func (k Kind[T]) Message(value T, options ...Option) (NewMessage, error) {
	if err := k.check(); err != nil {
		return NewMessage{}, lua.Faults("kind", err)
	}
	payload, err := k.codec().Encode(value)
	if err != nil {
		fault := lua.Invalid("value", fmt.Sprintf("%T", value), "cannot be encoded: %v", err)
		return NewMessage{}, lua.Faults("kind", fault)
	}
	m := NewMessage{Payload: payload}
	apply(&m, options)
	if own, ok := m.Headers[KindHeader]; ok {
		return NewMessage{}, lua.Faults("kind", lua.Invalid("header "+KindHeader, own, "is set by the kind alone"))
	}
	if k.UniqueBy != nil {
		if err := k.makeUnique(&m, value); err != nil {
			return NewMessage{}, lua.Faults("kind", err)
		}
	}
	if k.Name != "" {
		m.Headers = maps.Clone(m.Headers) // an option of the program may have set a map that other messages share
		Header(KindHeader, k.Name)(&m)
	}
	return m, nil
}

func (k Kind[T]) check() error {
	var codec error
	if c, ok := k.Codec.(functionCodec[T]); ok && (c.encode == nil || c.decode == nil) {
		codec = lua.Invalid("codec", "nil", "must have two functions")
	}
	return errors.Join(lua.CheckQueue(k.Queue), checkKindName(k.Name), codec)
}

// Delivery is a message with its decoded payload.
type Delivery[T any] struct {
	*Message
	Value T

	ctx context.Context // of the handler's call for this delivery; nil = a test made the delivery
}

// Cause returns the cause of the cancelled context of this delivery: ErrLost, ErrUnreachable, ErrCancelled, ErrStopping
// or ErrHandlerTimeout. It returns nil while the context is not cancelled. The handler of a batch uses it, because the
// context of a batch lasts as long as any of its deliveries.
func (d *Delivery[T]) Cause() error {
	if d.ctx == nil {
		return nil
	}
	return context.Cause(d.ctx)
}

// Handle makes the mux call the handler for messages of this kind. A payload that cannot be decoded becomes a dead
// letter at once. Its error names the kind and the reason. A codec may return Snooze, Release or RetryAfter instead,
// for example while it cannot read a schema. NewWorker reports an invalid kind, and a second handler for a kind.
func (k Kind[T]) Handle(mux *Mux, handler func(context.Context, *Delivery[T]) error) {
	var entry kindHandler
	if handler != nil {
		decoding := k.decoding(handler)
		entry.make = func(*workerBatches) Handler { return decoding }
	}
	mux.add(k.Queue, k.Name, k.check(), entry)
}

// decoding returns a handler that decodes the payload and calls the given handler.
func (k Kind[T]) decoding(handler func(context.Context, *Delivery[T]) error) Handler {
	codec := k.codec()
	return func(ctx context.Context, m *Message) error {
		value, err := codec.Decode(m.Payload)
		if err != nil {
			return undecodable(k.Name, err)
		}
		return handler(ctx, &Delivery[T]{m, value, ctx})
	}
}

// undecodable returns the result of a handler whose message cannot be decoded: a dead letter, unless the codec chose
// another next step.
func undecodable(kind string, err error) error {
	err = fmt.Errorf("the payload does not fit %s: %w", kindInWords(kind), err)
	if next := OutcomeOf(err); next.Action == ActionRetry && next.Delay < 0 { // a plain error
		return DeadLetter(err)
	}
	return err
}
