package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// plainWorker is a worker of level good by plain commands. broken names its one fault, or is "".
type plainWorker struct {
	client, blocking        rueidis.Client
	prefix, queue           string
	group, consumer, broken string

	mu   sync.Mutex
	held map[string][]string // stream → entries
	out  sync.Mutex
}

const slots = 4 // concurrent messages per partition

func runPlainWorker(broken string) error {
	opt, err := rueidis.ParseURL(os.Getenv("DUESTREAM_REDIS_URL"))
	if err != nil {
		return err
	}
	opt.DisableCache, opt.DisableRetry = true, true
	w := &plainWorker{
		prefix: os.Getenv("DUESTREAM_PREFIX"), queue: os.Getenv("QUEUE"), group: os.Getenv("GROUP"), consumer: os.Getenv("CONSUMER"),
		broken: broken, held: map[string][]string{},
	}
	if w.client, err = connect(opt); err != nil {
		return err
	}
	defer w.client.Close()
	opt.AlwaysPipelining = true // so that a deadline ends a blocked read
	if w.blocking, err = connect(opt); err != nil {
		return err
	}
	defer w.blocking.Close()
	ctx, stop := context.WithCancel(context.Background())
	if broken != "no-stop" {
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGTERM)
	}
	defer stop()
	var readers, extender sync.WaitGroup
	working, done := context.WithCancel(context.Background())
	extender.Go(func() { w.extend(working) })
	known := 0
	for ctx.Err() == nil {
		counts, err := lua.ReadCounts(ctx, w.client, lua.NewGlobals(w.prefix), w.queue)
		if err == nil {
			if broken == "one-partition" {
				counts = lua.Counts{1}
			}
			for ; known < counts.Latest(); known++ {
				stream := lua.NewKeys(w.prefix, lua.PartitionName(w.queue, known)).Stream
				readers.Go(func() { w.read(ctx, stream) })
			}
		}
		wait(ctx, 2*time.Second)
	}
	readers.Wait()
	done()
	extender.Wait()
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// read reads a stream until ctx ends, and returns when all begun work is done.
func (w *plainWorker) read(ctx context.Context, stream string) {
	var handlers sync.WaitGroup
	defer handlers.Wait()
	free := make(chan struct{}, slots)
	from, served := "0", false
	w.create(ctx, stream, from)
	if w.broken == "claims" {
		w.claim(ctx, stream)
	}
	for ctx.Err() == nil {
		free <- struct{}{} // wait for at least one slot
		n := 1
		for n < slots {
			select {
			case free <- struct{}{}:
				n++
				continue
			default:
			}
			break
		}
		if w.broken == "hoards" {
			for range n {
				<-free
			}
			w.hoard(stream)
			continue
		}
		call, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		c := w.blocking
		reply, err := c.Do(call, c.B().Xreadgroup().
			Group(w.group, w.consumer).Count(int64(n)).Block(500).Streams().Key(stream).Id(">").Build()).AsXRead()
		cancel()
		served = served || err == nil || rueidis.IsRedisNil(err)
		if err != nil && !rueidis.IsRedisNil(err) {
			if text := err.Error(); strings.Contains(text, "NOGROUP") || strings.Contains(text, "UNBLOCKED") {
				if w.broken == "dies-on-nogroup" && served { // before that, the group was not created yet
					fmt.Fprintln(os.Stderr, "fatal:", err)
					os.Exit(1)
				}
				if w.broken == "group-at-dollar" {
					from = "$"
				}
				w.create(ctx, stream, from)
			} else {
				fmt.Fprintln(os.Stderr, "read:", err)
				wait(ctx, 100*time.Millisecond)
			}
		}
		for _, e := range reply[stream] {
			n--
			w.hold(stream, e.ID, true)
			handlers.Go(func() {
				defer func() { <-free }()
				w.handle(stream, e)
				w.hold(stream, e.ID, false)
			})
		}
		for range n {
			<-free
		}
	}
}

// hoard reads all entries, works on them one by one, and extends only the current one.
func (w *plainWorker) hoard(stream string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c := w.blocking
	reply, err := c.Do(ctx, c.B().Xreadgroup().
		Group(w.group, w.consumer).Count(1000).Block(500).Streams().Key(stream).Id(">").Build()).AsXRead()
	if err != nil && strings.Contains(err.Error(), "NOGROUP") {
		w.create(ctx, stream, "0")
	}
	for _, e := range reply[stream] {
		w.hold(stream, e.ID, true)
		w.handle(stream, e)
		w.hold(stream, e.ID, false)
	}
}

// claim takes entries that other consumers have held for a second.
func (w *plainWorker) claim(ctx context.Context, stream string) {
	wait(ctx, 1100*time.Millisecond)
	reply, err := w.client.Do(ctx,
		w.client.B().Xautoclaim().Key(stream).Group(w.group).Consumer(w.consumer).MinIdleTime("1000").Start("0").Build()).ToArray()
	if err != nil || len(reply) < 2 {
		return
	}
	entries, err := reply[1].AsXRange()
	if err != nil {
		return
	}
	for _, e := range entries {
		w.handle(stream, e)
	}
}

func (w *plainWorker) create(ctx context.Context, stream, from string) {
	c := w.client
	err := c.Do(ctx, c.B().XgroupCreate().Key(stream).Group(w.group).Id(from).Mkstream().Build()).Error()
	if err != nil && !strings.Contains(err.Error(), "BUSYGROUP") {
		fmt.Fprintln(os.Stderr, "create:", err)
	}
}

func (w *plainWorker) hold(stream, entry string, held bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if held {
		w.held[stream] = append(w.held[stream], entry)
		return
	}
	w.held[stream] = slices.DeleteFunc(w.held[stream], func(e string) bool { return e == entry })
}

// handle works on one entry, and then acknowledges it.
func (w *plainWorker) handle(stream string, e rueidis.XRangeEntry) {
	fields := e.FieldValues
	if to := fields["for"]; to != "" && to != w.group && w.broken != "ignores-for" {
		w.acknowledge(stream, e.ID)
		return
	}
	id, attempt, headers := e.ID, 1, map[string]string{}
	for name, value := range fields {
		switch header, ok := strings.CutPrefix(name, "h:"); {
		case ok:
			headers[header] = value
		case name == "id":
			id = value
		case name == "attempt" && w.broken != "attempt-one":
			attempt, _ = strconv.Atoi(value)
		}
	}
	payload := []byte(fields["payload"])
	if w.broken == "text-payload" {
		payload = []byte(strings.ToValidUTF8(fields["payload"], "\ufffd"))
	}
	if w.broken == "acks-first" {
		w.acknowledge(stream, e.ID)
	}
	begun := map[string]any{"id": id, "attempt": attempt, "payload": payload, "headers": headers}
	if w.broken == "broken-json" {
		begun["attempt"] = json.RawMessage(`"first"`)
	}
	w.print(begun)
	if !work(headers["work"], attempt) {
		return // the entry stays pending, and is delivered again
	}
	w.acknowledge(stream, e.ID)
}

func work(what string, attempt int) bool {
	var n int
	if _, err := fmt.Sscanf(what, "slow %d", &n); err == nil {
		wait(context.Background(), time.Duration(n)*time.Millisecond)
	}
	if _, err := fmt.Sscanf(what, "fail %d", &n); err == nil {
		return attempt > n
	}
	return true
}

func (w *plainWorker) print(line any) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	w.out.Lock()
	defer w.out.Unlock()
	_, _ = os.Stdout.Write(append(text, '\n'))
}

// acknowledge repeats XACK for a while when a connection breaks. A repeated XACK is harmless.
func (w *plainWorker) acknowledge(stream, entry string) {
	for range 100 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		err := w.client.Do(ctx, w.client.B().Xack().Key(stream).Group(w.group).Id(entry).Build()).Error()
		cancel()
		if refused := (*rueidis.RedisError)(nil); err == nil || errors.As(err, &refused) &&
			!strings.Contains(err.Error(), "LOADING") {
			return
		}
		wait(context.Background(), 100*time.Millisecond)
	}
}

// extend restarts the visibility timeout of all held entries, each third of the timeout.
func (w *plainWorker) extend(ctx context.Context) {
	for ctx.Err() == nil && w.broken != "no-extend" {
		wait(ctx, min(w.visibility()/3, 5*time.Second))
		w.mu.Lock()
		for stream, held := range w.held {
			if len(held) > 0 {
				call, cancel := context.WithTimeout(context.Background(), 2*time.Second)
				_ = w.client.Do(call,
					w.client.B().Xclaim().Key(stream).Group(w.group).Consumer(w.consumer).MinIdleTime("0").Id(held...).Justid().Build()).Error()
				cancel()
			}
		}
		w.mu.Unlock()
	}
}

// visibility reads the timeout anew each time. The group's setting wins over the queue's, and that over the defaults.
func (w *plainWorker) visibility() time.Duration {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	own := lua.NewKeys(w.prefix, w.queue).Policy
	for _, at := range [][2]string{
		{own, "group:" + strings.ReplaceAll(url.QueryEscape(w.group), "+", "%20") + ":visibility_ms"}, {own, "visibility_ms"}, {lua.NewGlobals(w.prefix).Defaults, "visibility_ms"},
	} {
		if ms, err := w.client.Do(ctx, w.client.B().Hget().Key(at[0]).Field(at[1]).Build()).AsInt64(); err == nil && ms > 0 {
			return time.Duration(ms) * time.Millisecond
		}
	}
	return time.Second // the server is down: try again soon
}
