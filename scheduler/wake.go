package scheduler

import (
	"strings"

	"github.com/duestream/duestream/internal/tail"
	"github.com/duestream/duestream/lua"
)

// wakeCount is the greatest number of tokens that a read returns of one stream. A stream has one token, unless a
// producer does not trim it.
const wakeCount = 100

// waker waits for wake tokens of all owned queues and of the shared stream. Every scheduler sees every token.
type waker struct {
	*tail.Reader
	prefix string
	shared string // key of the shared wake stream
}

// newWaker returns a waker that calls onToken with the queue of each token, and with "" for a token of the shared
// stream. It calls onReadError with the error of a blocked read.
func newWaker(cfg Config, onToken func(queue string), onReadError func(error)) *waker {
	w := &waker{prefix: cfg.Prefix, shared: lua.NewGlobals(cfg.Prefix).Wake}
	w.Reader = tail.New(tail.Config{
		Client: cfg.Blocking, Block: cfg.WakeBlock, Count: wakeCount, Log: cfg.Logger, Activity: "wait for tokens",
		Added: func(key, _ string) {
			if key == w.shared {
				onToken("")
				return
			}
			onToken(strings.TrimSuffix(strings.TrimPrefix(key, cfg.Prefix+":{"), "}:wake"))
		}, Broken: onReadError,
	})
	w.watch(nil)
	return w
}

// watch sets the queues to wait for, besides the shared stream.
func (w *waker) watch(queues []string) {
	keys := map[string]string{w.shared: ""}
	for _, queue := range queues {
		keys[lua.NewKeys(w.prefix, queue).Wake] = ""
	}
	w.Watch(keys)
}
