// Helper does the work of package redistest that needs large modules: it starts containers with a Docker client, and
// in-process servers (miniredis). It is a program of its own, because whoever uses a package must fetch all modules
// that the tests of the package import. It answers the requests of package wire on its standard input, and ends when
// its input ends.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/alicebob/miniredis/v2"

	"github.com/duestream/duestream/integration/redistest/wire"
)

func main() {
	var out sync.Mutex
	replies := json.NewEncoder(os.Stdout)
	servers := &inProcess{all: map[string]*miniredis.Miniredis{}}
	docker := &engine{}
	requests := json.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var r wire.Request
		if err := requests.Decode(&r); err != nil {
			return
		}
		go func() {
			text, err := answer(docker, servers, r)
			reply := wire.Reply{ID: r.ID, Text: text}
			if err != nil {
				reply.Error = err.Error()
			}
			out.Lock()
			defer out.Unlock()
			_ = replies.Encode(reply) // an error means that the test process has ended
		}()
	}
}

func answer(docker *engine, servers *inProcess, r wire.Request) (string, error) {
	switch r.Op {
	case wire.InProcess:
		return servers.start()
	case wire.Close:
		return "", servers.close(r.Subject)
	case wire.Engine:
		return "", docker.connect()
	}
	if err := docker.connect(); err != nil {
		return "", err
	}
	switch r.Op {
	case wire.Has:
		return docker.has(r.Subject), nil
	case wire.Pull:
		return "", docker.pull(r.Subject)
	case wire.Create:
		return docker.create(r)
	}
	return "", docker.control(r.Op, r.Subject)
}

// inProcess holds the in-process servers that run, by address.
type inProcess struct {
	mu  sync.Mutex
	all map[string]*miniredis.Miniredis
}

func (p *inProcess) start() (string, error) {
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		return "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[m.Addr()] = m
	return m.Addr(), nil
}

func (p *inProcess) close(addr string) error {
	p.mu.Lock()
	m := p.all[addr]
	delete(p.all, addr)
	p.mu.Unlock()
	if m == nil {
		return fmt.Errorf("no in-process server at %s", addr)
	}
	m.Close()
	return nil
}
