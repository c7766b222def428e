package migrate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

const (
	queue = "mail" // that of the jobs
	group = "mailers"
	kills = 5
)

// scale returns how many jobs a test makes, and the time until the first is due.
func scale() (jobs int, lead time.Duration) {
	if os.Getenv("DUESTREAM_TEST_FULL") != "" {
		return 100_000, 100 * time.Second
	}
	return 3000, 6 * time.Second
}

// programs is the directory of the programs that the tests build. TestMain removes it.
var programs = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "duestream-migrate-") })

func TestMain(m *testing.M) {
	code := redistest.Run(m)
	if dir, err := programs(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// program builds a program, once, in its own directory, because that may be a module of its own.
func program(name, dir string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		target, err := programs()
		if err != nil {
			return "", err
		}
		path := filepath.Join(target, name)
		build := exec.Command("go", "build", "-buildvcs=false", "-o", path, ".")
		build.Dir, build.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("go build in %s: %w\n%s", dir, err, out)
		}
		return path, nil
	})
}

var (
	jobsProgram = program("jobs", "jobs")
	command     = program("duestream", "../../cmd/duestream")
)

// made is a job that the library has made.
type made struct {
	ID, Payload, State string
	Due                int64 `json:"due_ms"`
}

// makeJobs lets a library make jobs in a Redis.
func makeJobs(t *testing.T, library string, redis *redistest.Server, jobs int, lead time.Duration) (all []made) {
	t.Helper()
	path, err := jobsProgram()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, "-redis", redis.Addr(), "-jobs", strconv.Itoa(jobs),
		"-lead", lead.String(), library)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err, " ", complaints.String())
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var job made
		if err := dec.Decode(&job); err != nil {
			t.Fatal(err)
		}
		all = append(all, job)
	}
	if len(all) != jobs {
		t.Fatalf("%d jobs instead of %d", len(all), jobs)
	}
	return all
}

// report is what the command prints.
type report struct {
	Moved, Stayed, Known, Refused, Removed int64
	Queues                                 []struct {
		Queue  string
		States map[string]int64 `json:"moved_by_state"`
		Unsaid map[string]int64
	}
}

// migrated runs the command until no jobs are left, and kills it several times on the way. count counts the jobs that
// are left.
func migrated(t *testing.T, from, to *redistest.Server, jobs int, count func() int64, args ...string) {
	t.Helper()
	path, err := command()
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"migrate"}, append(args, "--from", from.URL(), "--remove", "--json")...)
	start := func() (*exec.Cmd, *bytes.Buffer, chan error) {
		cmd, out := exec.Command(path, args...), &bytes.Buffer{}
		cmd.Env = append(os.Environ(), "DUESTREAM_REDIS_URL="+to.URL())
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		return cmd, out, ended
	}
	begin, killed, first := time.Now(), 0, count()
	for n := 1; n <= kills; n++ {
		goal := first - int64(n)*first/(kills+1)
		cmd, out, ended := start()
		for running := true; running; {
			select {
			case err := <-ended:
				if err != nil {
					t.Fatal(err, " ", out.String())
				}
				running = false
			default:
				if count() <= goal {
					_ = cmd.Process.Kill()
					<-ended
					killed, running = killed+1, false
				}
			}
		}
	}
	_, out, ended := start()
	if err := <-ended; err != nil {
		t.Fatal(err, " ", out.String())
	}
	var last report
	if err := json.Unmarshal(out.Bytes(), &last); err != nil {
		t.Fatal(err, " ", out.String())
	}
	t.Logf("%d jobs: killed %d times on the way, %s in all; the last run: %+v", jobs, killed,
		time.Since(begin).Round(time.Millisecond), last)
	if killed == 0 { // on a slow machine, a run may end before it is killed
		t.Error("the command was never killed")
	}
	redistest.Want(t, "refused", last.Refused, 0)
}

// serve runs a bridge and a worker until the test ends. The worker calls got for each delivery.
func serve(t *testing.T, server *redistest.Server, got func(m *bridge.Message)) {
	t.Helper()
	redis, err := bridge.Dial(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Close)
	b, err := bridge.NewBridge(bridge.Config{Redis: redis})
	if err != nil {
		t.Fatal(err)
	}
	w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: redis, Queue: queue, Group: group, Concurrency: 200,
		Handler: func(_ context.Context, m *bridge.Message) error {
			got(m)
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{b.Run, w.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

// arrives moves jobs of a library to a queue that is served meanwhile, and checks that each of them is delivered once,
// not before its due time. It returns the Redis of the library. structures are commands that count the library's jobs.
// name returns by what a message and a job are compared; "" = the job does not arrive.
func arrives(
	t *testing.T, library string, structures []string, name func(payload, state string) string, args ...string,
) *redistest.Server {
	t.Helper()
	jobs, lead := scale()
	from, to := redistest.Own(t), redistest.Own(t)
	var ledger redistest.Ledger
	serve(t, to, func(m *bridge.Message) {
		ledger.Delivered(group, name(string(m.Payload), ""), time.Now().UnixMilli(), m.Due.UnixMilli())
	})
	for _, job := range makeJobs(t, library, from, jobs, lead) {
		if id := name(job.Payload, job.State); id != "" {
			ledger.Sent(id, job.Due)
		}
	}
	c := from.Client(t)
	migrated(t, from, to, jobs, func() int64 { return left(t, c, structures...) }, args...)
	redistest.Want(t, "jobs that are left", left(t, c, structures...), 0)
	redistest.Eventually(t, 3*time.Minute+lead, func() (bool, string) {
		missing := ledger.Missing(group, 3)
		return len(missing) == 0, fmt.Sprint("not delivered: ", missing)
	})
	redistest.Want(t, "deliveries beyond the first", ledger.Check(t, group).Duplicated, 0)
	return from
}

// The tasks of asynq arrive once, at their due times, although the command that moves them is killed on the way.
// Archived tasks become dead letters, and completed tasks stay.
func TestTasksOfAsynqArriveOnceThoughTheMoveIsKilled(t *testing.T) {
	t.Parallel()
	const tasks = "asynq:{mail}:"
	from := arrives(t, "asynq", []string{"LLEN " + tasks + "pending", "LLEN " + tasks + "active",
		"ZCARD " + tasks + "lease", "ZCARD " + tasks + "scheduled", "ZCARD " + tasks + "retry",
		"ZCARD " + tasks + "archived"},
		func(payload, state string) string {
			if state == "archived" || state == "completed" {
				return ""
			}
			return payload
		}, "asynq", "--archived-to", group)
	c := from.Client(t)
	completed := left(t, c, "ZCARD "+tasks+"completed")
	var keys int64
	for cursor := uint64(0); ; {
		page, err := c.Do(t.Context(), c.B().Scan().Cursor(cursor).Match(tasks+"t:*").Count(1000).Build()).AsScanEntry()
		if err != nil {
			t.Fatal(err)
		}
		if keys, cursor = keys+int64(len(page.Elements)), page.Cursor; cursor == 0 {
			break
		}
	}
	redistest.Want(t, "keys of tasks besides those of completed tasks", keys-completed, 0)
}

// The messages of delayqueue arrive once, at their due times, although the command that moves them is killed on the
// way. Nothing is left of them.
func TestMessagesOfDelayqueueArriveOnceThoughTheMoveIsKilled(t *testing.T) {
	t.Parallel()
	const messages = "dp:mail:"
	from := arrives(t, "delayqueue", []string{"ZCARD " + messages + "pending", "LLEN " + messages + "ready",
		"ZCARD " + messages + "unack", "LLEN " + messages + "retry", "HLEN " + messages + "retry:cnt"},
		func(payload, _ string) string { return payload }, "delayqueue")
	c := from.Client(t)
	n, err := c.Do(t.Context(), c.B().Dbsize().Build()).AsInt64()
	redistest.Want(t, "keys that are left", fmt.Sprint(n, err), "0 <nil>")
}

// left adds up the answers to commands with one key, such as LLEN.
func left(t *testing.T, c rueidis.Client, commands ...string) (sum int64) {
	t.Helper()
	for _, line := range commands {
		command, key, _ := strings.Cut(line, " ")
		n, err := c.Do(context.Background(), c.B().Arbitrary(command, key).Build()).AsInt64()
		if err != nil {
			t.Fatal(line, " ", err)
		}
		sum += n
	}
	return sum
}
