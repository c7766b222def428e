package shareddial_test

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/shareddial"
)

// A caller connects, and is cancelled before it is connected. Other callers wait for the same connection meanwhile.
// Their calls must succeed.
func TestACancelledCallerDoesNotFailTheOthers(t *testing.T) {
	t.Parallel()
	calls := map[string]func(context.Context, rueidis.Client) error{
		"Do": func(ctx context.Context, c rueidis.Client) error { return c.Do(ctx, c.B().Ping().Build()).Error() },
		"DoMulti": func(ctx context.Context, c rueidis.Client) error {
			replies := c.DoMulti(ctx, c.B().Ping().Build(), c.B().Ping().Build())
			for _, reply := range replies {
				if err := reply.Error(); err != nil {
					return err
				}
			}
			return nil
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			line := &line{dialing: make(chan struct{})}
			options := rueidis.MustParseURL(redistest.Shared(t).URL())
			options.DisableCache = true
			options.PipelineMultiplex = -1 // one connection, which all callers share
			options.DialCtxFn = line.dial
			library, err := rueidis.NewClient(options)
			if err != nil {
				t.Fatal(err)
			}
			defer library.Close()
			client := &counted{Client: library}
			protected := shareddial.Wrap(client)
			_ = line.first.Close()

			cancelled, cancel := context.WithCancel(t.Context())
			defer cancel()
			var callers sync.WaitGroup
			callers.Go(func() {
				for cancelled.Err() == nil { // the first calls may still get the error of the closed connection
					_ = call(cancelled, library)
				}
			})
			<-line.dialing
			const others = 20
			for range others {
				callers.Go(func() {
					if err := call(t.Context(), protected); err != nil {
						t.Errorf("another caller was cancelled: %v", err)
					}
				})
			}
			redistest.Eventually(t, 10*time.Second, func() (bool, string) {
				return client.calls.Load() == others, "not all callers wait"
			})
			cancel()
			callers.Wait()
		})
	}
}

// Regression: a read was repeated on a new connection, and its arguments were cleared while the writer of the old
// connection still read them. The race detector found it in a whole run. It needs rare timing, so this test looks for
// the cause instead: arguments that are still there after the call were not cleared.
func TestArgumentsOfACommandThatMayBeRepeatedAreKept(t *testing.T) {
	t.Parallel()
	c := shareddial.Wrap(redistest.Shared(t).Client(t))
	single := c.B().Get().Key("single").Build()
	c.Do(t.Context(), single)
	several := []rueidis.Completed{c.B().Get().Key("first").Build(), c.B().Get().Key("last").Build()}
	c.DoMulti(t.Context(), several...)
	commands := map[string]rueidis.Completed{"single": single, "first": several[0], "last": several[1]}
	for key, command := range commands {
		if got, want := command.Commands(), []string{"GET", key}; !slices.Equal(got, want) {
			t.Errorf("arguments after the call: %q, want %q", got, want)
		}
	}
}

// line makes connections. The second one never succeeds: it ends with the context of the caller who connects.
type line struct {
	dials   atomic.Int32
	first   net.Conn
	dialing chan struct{} // closed when the second connection is being made
}

func (l *line) dial(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
	if l.dials.Add(1) == 2 {
		close(l.dialing)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	conn, err := d.DialContext(ctx, "tcp", address)
	if l.first == nil {
		l.first = conn
	}
	return conn, err
}

// counted counts the calls that began.
type counted struct {
	rueidis.Client
	calls atomic.Int32
}

func (c *counted) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	c.calls.Add(1)
	return c.Client.Do(ctx, cmd)
}

func (c *counted) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	c.calls.Add(1)
	return c.Client.DoMulti(ctx, cmds...)
}
