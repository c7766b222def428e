package lua

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/assemble"
)

// fcaller sends each call of a published script as FCALL.
type fcaller struct {
	rueidis.Client
	names map[string]string // SHA of the script → name of the function

	mu   sync.Mutex
	sent map[string]int // how often each was called
}

func (f *fcaller) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if words := cmd.Commands(); words[0] == "EVALSHA" && f.names[words[1]] != "" {
		name := f.names[words[1]]
		cmd = f.B().Arbitrary("FCALL", name).Args(words[2:]...).Build()
		f.mu.Lock()
		f.sent[name]++
		f.mu.Unlock()
	}
	return f.Client.Do(ctx, cmd)
}

// loaded holds, for each server with the library, its single load.
var loaded sync.Map

// functionsBySHA holds the names of the functions, by the script that does their work.
var functionsBySHA = sync.OnceValue(func() map[string]string {
	files, err := assemble.Read(os.DirFS("."))
	if err != nil {
		panic(err)
	}
	functions, err := files.Functions()
	if err != nil {
		panic(err)
	}
	names := map[string]string{}
	for _, f := range functions {
		for _, s := range scripts() {
			if f.File == s.name+".lua" {
				names[s.sha] = f.Name
			}
		}
	}
	return names
})

// newFunctionsQueue returns a queue whose calls run published scripts through the functions library.
func newFunctionsQueue(t *testing.T, s *redistest.Server) *testQueue {
	b := newTestQueue(t, s)
	load, _ := loaded.LoadOrStore(s, sync.OnceValue(func() error {
		_, err := LoadLibrary(b.ctx, b.c, "", true)
		return err
	}))
	if err := load.(func() error)(); err != nil {
		t.Fatal(err)
	}
	b.c = &fcaller{Client: b.c, names: functionsBySHA(), sent: map[string]int{}}
	b.fcall = true
	return b
}

// again returns the queue again, with its own connection.
func (b *testQueue) again() *testQueue {
	if b.fcall {
		return newFunctionsQueue(b.T, b.s)
	}
	return newTestQueue(b.T, b.s)
}
