package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	installTimeout = 5 * time.Minute
	policyFile     = "/usr/sbin/policy-rc.d"
)

// installServer installs Debian's redis-server package without starting its service.
func installServer() error {
	return installPackages("redis-server or valkey-server on the PATH", func() bool { return serverBinary() != "" },
		"redis-server")
}

// Install makes a test have what it needs: when that is not there it installs Debian's packages, and fails the test when that
// cannot be done either. There tells whether it is there; what names it in the message.
func Install(t testing.TB, what string, there func() bool, packages ...string) {
	t.Helper()
	if there() {
		return
	}
	if err := installPackages(what, there, packages...); err != nil {
		t.Fatalf("redistest: install Debian's %s: %v", strings.Join(packages, " and "), err)
	}
	if !there() {
		t.Fatalf("redistest: no %s, although Debian's %s are installed", what, strings.Join(packages, " and "))
	}
}

// installPackages installs Debian packages without starting services of theirs. Test processes take turns; the later ones find it
// done.
func installPackages(what string, there func() bool, packages ...string) error {
	if _, err := os.Stat("/etc/debian_version"); err != nil {
		return fmt.Errorf("no %s, and this is not Debian, where the tests could install it", what)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("no %s, and installing it needs root", what)
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("no %s, and no apt-get to install it with", what)
	}
	return withMachineLock(func() error {
		if there() {
			return nil
		}
		fmt.Fprintf(os.Stderr, "redistest: no %s here, installing Debian's %s\n", what, strings.Join(packages, " "))
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
		if err := aptGet(ctx, append([]string{"install", "-y", "--no-install-recommends"}, packages...)...); err != nil {
			return err
		}
		// nor at the next start of the machine. Without systemd there is nothing to disable
		if slices.Contains(packages, "redis-server") {
			disable := exec.CommandContext(ctx, "deb-systemd-helper", "disable", "redis-server.service")
			disable.Env = append(os.Environ(), "DPKG_MAINTSCRIPT_PACKAGE=redis-server") // it asks whose unit that is
			_ = disable.Run()
		}
		return nil
	})
}

// InstallNode has npm install what dir/package.json names, when there tells that it is not there. Test processes take turns.
func InstallNode(t testing.TB, dir string, there func() bool) {
	t.Helper()
	if there() {
		return
	}
	err := withMachineLock(func() error {
		if there() {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), installTimeout)
		defer cancel()
		out, err := exec.CommandContext(ctx, "npm", "install", "--prefix", dir, "--no-audit", "--no-fund",
			"--loglevel=error").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("redistest: npm install --prefix %s: %v", dir, err)
	}
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
	_, err = f.WriteString("#!/bin/sh\n# Written by duestream's tests while they install redis-server; may be removed.\n" +
		"exit 101\n")
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

// Program returns the path of redis-server or valkey-server, for a test of something that starts a server by itself. It fails the
// test when there is none and it cannot be installed either.
func Program(t testing.TB) string {
	t.Helper()
	if serverBinary() == "" {
		if err := installServer(); err != nil {
			t.Fatalf("redistest: this test needs a server program: %v", err)
		}
	}
	return serverBinary()
}
