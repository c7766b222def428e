package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

const (
	installTimeout = 5 * time.Minute
	policyFile     = "/usr/sbin/policy-rc.d"
)

// installServer installs Debian's redis-server package without starting its service. Test processes take turns; the
// later ones find it done.
func installServer() error {
	if _, err := os.Stat("/etc/debian_version"); err != nil {
		return errors.New("no redis-server or valkey-server on the PATH, and this is not Debian, where the tests could install it")
	}
	if os.Geteuid() != 0 {
		return errors.New("no redis-server or valkey-server on the PATH, and installing it needs root")
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.New("no redis-server or valkey-server on the PATH, and no apt-get to install it with")
	}
	return withMachineLock(func() error {
		if serverBinary() != "" {
			return nil
		}
		fmt.Fprintln(os.Stderr, "redistest: no redis-server here, installing Debian's package")
		restore, err := denyServices()
		if err != nil {
			return err
		}
		defer restore()
		ctx, cancel := context.WithTimeout(context.Background(), installTimeout)
		defer cancel()
		if err := aptGet(ctx, "update"); err != nil {
			return err
		}
		if err := aptGet(ctx, "install", "-y", "--no-install-recommends", "redis-server"); err != nil {
			return err
		}
		// Nor at the next start of the machine. Without systemd there is nothing to disable.
		disable := exec.CommandContext(ctx, "deb-systemd-helper", "disable", "redis-server.service")
		disable.Env = append(os.Environ(), "DPKG_MAINTSCRIPT_PACKAGE=redis-server") // it asks whose unit that is
		_ = disable.Run()
		return nil
	})
}

func aptGet(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-qq", "-o", "DPkg::Lock::Timeout=240"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // lets it leave dpkg in order
	cmd.WaitDelay = 20 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		if len(out) > 2000 {
			out = out[len(out)-2000:]
		}
		return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, out)
	}
	return nil
}

// denyServices keeps Debian from starting the service of a package that is being installed, for which it asks
// policy-rc.d. A policy that is there already is the administrator's and stays.
func denyServices() (restore func(), err error) {
	f, err := os.OpenFile(policyFile, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if errors.Is(err, os.ErrExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	restore = func() { _ = os.Remove(policyFile) }
	_, err = f.WriteString("#!/bin/sh\n# Written by duestream's tests while they install redis-server; may be removed.\nexit 101\n")
	if err = errors.Join(err, f.Close()); err != nil {
		restore()
		return nil, err
	}
	return restore, nil
}

// withMachineLock runs f while no other test process on this machine runs one.
func withMachineLock(f func() error) error {
	lock, err := os.OpenFile(machineFile("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // gives the lock back
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	return f()
}

// machineFile names a file that this user's test processes share. The kernel refuses files of other users in a
// directory like /tmp, hence the number.
func machineFile(name string) string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("duestream-redistest-%d-%s", os.Getuid(), name))
}

// Program returns the path of redis-server or valkey-server, for a test of something that starts a server by itself. It fails the test
// when there is none and it cannot be installed either.
func Program(t testing.TB) string {
	t.Helper()
	if serverBinary() == "" {
		if err := installServer(); err != nil {
			t.Fatalf("redistest: this test needs a server program: %v", err)
		}
	}
	return serverBinary()
}
