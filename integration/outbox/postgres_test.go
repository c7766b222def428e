package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/duestream/duestream/integration/redistest"
)

// postgres is a PostgreSQL server in a child process with a data directory of its own. A test may kill it and start it
// again. The server refuses to run as root, so as root the tests run it as user postgres, or nobody.
type postgres struct {
	bin, dir string
	port     int
	attr     syscall.SysProcAttr
	cmd      *exec.Cmd
	gone     chan struct{}
}

// binaries returns the directory of PostgreSQL's programs; "" if there is none.
func binaries() string {
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	for _, dir := range slices.Backward(dirs) {
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err == nil {
			return dir
		}
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path)
	}
	return ""
}

// newPostgres makes a database cluster, and starts the server. It runs until end is called.
func newPostgres(t testing.TB) (p *postgres, end func() error) {
	t.Helper()
	redistest.Install(t, "PostgreSQL", func() bool { return binaries() != "" }, "postgresql")
	p = &postgres{bin: binaries()}
	stop := func() error {
		p.kill()
		return os.RemoveAll(p.dir)
	}
	remove := redistest.AtExit(stop) // also for a test that ends without its cleanups
	if err := p.initialize(); err != nil {
		t.Fatal("initdb: ", err)
	}
	if err := p.start(); err != nil {
		t.Fatal("start PostgreSQL: ", err)
	}
	return p, func() error {
		remove()
		return stop()
	}
}

// ownPostgres returns a server that the test may kill.
func ownPostgres(t testing.TB) *postgres {
	t.Helper()
	p, end := newPostgres(t)
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *postgres) initialize() (err error) {
	if p.dir, err = os.MkdirTemp("", "duestream-postgres-"); err != nil {
		return err
	}
	p.attr = syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		who, err := user.Lookup("postgres")
		if err != nil {
			who, err = user.Lookup("nobody")
		}
		if err != nil {
			return err
		}
		uid, _ := strconv.Atoi(who.Uid)
		gid, _ := strconv.Atoi(who.Gid)
		p.attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(p.dir, uid, gid); err != nil {
			return err
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p.port = listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	cmd := exec.Command(filepath.Join(p.bin, "initdb"), "-D", filepath.Join(p.dir, "data"), "-U", "shop",
		"--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
	cmd.Dir, cmd.SysProcAttr = p.dir, &p.attr
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

func (p *postgres) url() string {
	return fmt.Sprintf("postgres://shop@127.0.0.1:%d/postgres?sslmode=disable", p.port)
}

// start starts the server, and returns when it answers. Without fsync a kill of the server loses nothing, because the
// system keeps what was written.
func (p *postgres) start() error {
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	begin := time.Now()
	for {
		cmd := exec.Command(filepath.Join(p.bin, "postgres"),
			"-D", filepath.Join(p.dir, "data"), "-p", strconv.Itoa(p.port),
			"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off",
			"-c", "max_connections=60", "-c", "shared_buffers=32MB")
		cmd.Dir, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = p.dir, &p.attr, log, log
		started, gone := make(chan error, 1), make(chan struct{})
		go func() { // the signal of the parent's death belongs to the thread that started the child
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			err := cmd.Start()
			started <- err
			if err == nil {
				_ = cmd.Wait()
			}
			close(gone)
		}()
		if err := <-started; err != nil {
			return err
		}
		p.cmd, p.gone = cmd, gone
		err := p.answers(gone)
		if err == nil {
			return nil
		}
		p.kill()
		if time.Since(begin) > time.Minute { // right after a kill, the memory of the former server may still be in use
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("%w\n%s", err, text[max(0, len(text)-3000):])
		}
	}
}

// answers waits until the server answers.
func (p *postgres) answers(gone chan struct{}) error {
	db, err := sql.Open("pgx", p.url())
	if err != nil {
		return err
	}
	defer db.Close()
	for deadline := time.Now().Add(30 * time.Second); ; {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := db.PingContext(ctx)
		cancel()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-gone:
			return errors.New("the server ended")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// kill kills the server and all its processes. A process that serves a connection would otherwise go on until it
// notices that the server is gone.
func (p *postgres) kill() {
	if p.cmd == nil {
		return
	}
	all := append([]int{p.cmd.Process.Pid}, childrenOf(p.cmd.Process.Pid)...)
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-p.gone
	p.cmd = nil
}

// childrenOf returns the processes that a process has started.
func childrenOf(parent int) (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ") // behind the name: state, parent
		if cells := strings.Fields(rest); len(cells) > 1 && cells[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// open connects to the server.
func (p *postgres) open(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", p.url())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

var shared struct {
	sync.Mutex
	server *postgres
}

// sharedPostgres returns the server that the tests share. It runs until all tests have ended.
func sharedPostgres(t testing.TB) *postgres {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		shared.server, _ = newPostgres(t)
	}
	return shared.server
}
