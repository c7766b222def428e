package tracing

import (
	"context"
	"fmt"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// Client is a bridge.Client that makes a span, "schedule <queue>", for each call that schedules messages. The
// messages carry that span in their headers, with the trace state and baggage of the context. These headers replace
// headers of the same names. A trace header that would exceed the limits of a message's headers is left out.
type Client struct {
	*bridge.Client
	tracer *tracer // nil = tracing is off
}

// NewClient returns a client that traces the calls of the given client. Closing the returned client closes the given
// client. It returns a *bridge.InvalidError if client is nil.
func NewClient(client *bridge.Client, c Config) (*Client, error) {
	if err := lua.Faults("tracing", lua.Required("client", client != nil)); err != nil {
		return nil, err
	}
	if c.Provider == nil {
		return &Client{Client: client}, nil
	}
	return &Client{client, newTracer(c)}, nil
}

// startSchedule starts the span of a call that schedules messages.
func (t *tracer) startSchedule(ctx context.Context, queue string) (context.Context, trace.Span) {
	return t.Start(ctx, "schedule "+queue, trace.WithSpanKind(trace.SpanKindProducer),
		operation(queue, "schedule", semconv.MessagingOperationTypeSend))
}

// Schedule is bridge.Client.Schedule with a span.
func (c *Client) Schedule(ctx context.Context, queue string, payload []byte, options ...bridge.Option) (
	bridge.Receipt, error) {
	m := bridge.NewMessage{Payload: payload}
	for _, set := range options {
		set(&m)
	}
	return c.Send(ctx, queue, m)
}

// Send is bridge.Client.Send with a span.
func (c *Client) Send(ctx context.Context, queue string, m bridge.NewMessage) (bridge.Receipt, error) {
	if c.tracer == nil {
		return c.Client.Send(ctx, queue, m)
	}
	return c.tracer.send(ctx, queue, m, c.Client.Send)
}

// send sends a message within a span.
func (t *tracer) send(ctx context.Context, queue string, m bridge.NewMessage,
	next func(context.Context, string, bridge.NewMessage) (bridge.Receipt, error)) (bridge.Receipt, error) {
	ctx, span := t.startSchedule(ctx, queue)
	defer span.End()
	m.Headers = with(m.Headers, t.inject(ctx))
	receipt, err := next(ctx, queue, m)
	if span.IsRecording() {
		all := append(make([]attribute.KeyValue, 0, 4), semconv.MessagingMessageBodySize(len(m.Payload)))
		if receipt.ID != "" {
			all = append(all, semconv.MessagingMessageID(receipt.ID), keyDue.Int64(receipt.Due.UnixMilli()),
				keyReady.Bool(receipt.Ready))
		}
		span.SetAttributes(all...)
		if err != nil {
			fail(span, err, "")
		}
	}
	return receipt, err
}

// ScheduleBatch is the former name of SendBatch.
func (c *Client) ScheduleBatch(ctx context.Context, queue string, messages []bridge.NewMessage) (
	[]bridge.Result, error) {
	return c.SendBatch(ctx, queue, messages)
}

// SendBatch is bridge.Client.SendBatch with one span, which all messages of the batch carry.
func (c *Client) SendBatch(ctx context.Context, queue string, messages []bridge.NewMessage) ([]bridge.Result, error) {
	if c.tracer == nil {
		return c.Client.SendBatch(ctx, queue, messages)
	}
	return c.tracer.sendBatch(ctx, queue, messages, c.Client.SendBatch)
}

// sendBatch sends messages within a span.
func (t *tracer) sendBatch(ctx context.Context, queue string, messages []bridge.NewMessage, next bridge.Sender) (
	[]bridge.Result, error) {
	ctx, span := t.startSchedule(ctx, queue)
	defer span.End()
	traced, traceHeaders := slices.Clone(messages), t.inject(ctx)
	for i := range traced {
		traced[i].Headers = with(traced[i].Headers, traceHeaders)
	}
	results, err := next(ctx, queue, traced)
	if span.IsRecording() {
		span.SetAttributes(semconv.MessagingBatchMessageCount(len(messages)))
		refused := 0
		for i := range results {
			if results[i].Err != nil {
				refused++
			}
		}
		switch {
		case err != nil:
			fail(span, err, "")
		case refused > 0:
			span.SetAttributes(keyRefused.Int(refused))
			span.SetStatus(codes.Error, fmt.Sprintf("%d of %d refused", refused, len(messages)))
		}
	}
	return results, err
}
