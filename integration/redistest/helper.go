package redistest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/duestream/duestream/integration/redistest/wire"
)

// helper is the connection to the helper process, which starts containers and in-process servers. That process uses
// modules that this package must not import: see the helper package.
type helper struct {
	mu      sync.Mutex
	in      *json.Encoder
	last    int                     // ID of the last request
	waiting map[int]chan wire.Reply // by ID of a request: gets its reply. The map is nil when the process has ended
}

// errHelper means that there is no helper process. This is different from having no Docker engine.
var errHelper = errors.New("the helper process of the tests")

// theHelper returns the helper of this process. The first call starts it.
var theHelper = sync.OnceValues(func() (*helper, error) {
	cmd := exec.Command("go", "run", "github.com/duestream/duestream/integration/redistest/helper")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = childGroup()
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: %w", errHelper, err)
	}
	h := &helper{in: json.NewEncoder(in), waiting: map[int]chan wire.Reply{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		h.read(out)
	}()
	AtExit(func() error {
		_ = in.Close() // the helper process ends when its input ends
		<-read
		return cmd.Wait()
	})
	return h, nil
})

// read passes each reply to the caller that waits for it, until the process ends.
func (h *helper) read(out io.Reader) {
	replies := json.NewDecoder(bufio.NewReader(out))
	for {
		var r wire.Reply
		err := replies.Decode(&r)
		h.mu.Lock()
		if err != nil {
			for _, asked := range h.waiting {
				close(asked)
			}
			h.waiting = nil
			h.mu.Unlock()
			return
		}
		h.waiting[r.ID] <- r
		delete(h.waiting, r.ID)
		h.mu.Unlock()
	}
}

// ask sends a request to the helper and waits for its answer.
func ask(r wire.Request) (string, error) {
	h, err := theHelper()
	if err != nil {
		return "", err
	}
	answered := make(chan wire.Reply, 1)
	h.mu.Lock()
	if h.waiting != nil {
		h.last++
		r.ID = h.last
		if err = h.in.Encode(r); err == nil {
			h.waiting[r.ID] = answered
		}
	} else {
		err = errors.New("it has ended")
	}
	h.mu.Unlock()
	if err != nil {
		return "", fmt.Errorf("%w: %w", errHelper, err)
	}
	reply, ok := <-answered
	switch {
	case !ok:
		return "", fmt.Errorf("%w ended before it had answered %s %s", errHelper, r.Op, r.Subject)
	case reply.Error != "":
		return "", errors.New(reply.Error)
	}
	return reply.Text, nil
}

// InProcess returns an in-process server for one test, of the kind that duestream dev uses: an imitation of Redis,
// here in the helper process. It ends with the test.
func InProcess(t testing.TB) *Server {
	t.Helper()
	addr, err := ask(wire.Request{Op: wire.InProcess})
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	t.Cleanup(func() {
		if _, err := ask(wire.Request{Op: wire.Close, Subject: addr}); err != nil {
			t.Errorf("redistest: %v", err)
		}
	})
	return At(t, "redis://"+addr, "in-process")
}
