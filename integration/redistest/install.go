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

// Install installs Debian packages that a test needs, unless there reports that the machine has what it needs. It fails
// the test if the packages cannot be installed. what names the need in messages.
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

// installPackages installs Debian packages without starting their services. Only one test process installs at a time. A
// process that had to wait asks there again, and then finds the packages installed.
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
		// The service must not start with the machine either. An error is ignored, because without systemd there is
		// nothing to disable.
		if slices.Contains(packages, "redis-server") {
			disable := exec.CommandContext(ctx, "deb-systemd-helper", "disable", "redis-server.service")
			disable.Env = append(os.Environ(), "DPKG_MAINTSCRIPT_PACKAGE=redis-server") // the package to which the unit belongs
			_ = disable.Run()
		}
		return nil
	})
}

// InstallNode runs npm to install the modules that dir/package.json names, unless there reports that they are
// installed. Only one test process installs at a time.
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
	// SIGTERM lets apt-get leave dpkg in a clean state
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		if len(out) > 2000 {
			out = out[len(out)-2000:]
		}
		return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, out)
	}
	return nil
}

// denyServices keeps Debian from starting the service of a package that is being installed, until restore is called.
// Before it starts a service, Debian runs policy-rc.d to ask whether it may. A policy file that already exists belongs
// to the administrator, and stays as it is.
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

// withMachineLock runs f while no other test process on this machine runs such a function.
func withMachineLock(f func() error) error {
	lock, err := os.OpenFile(machineFile("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // releases the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	return f()
}

// machineFile names a file that all test processes of this user share. The name contains the user ID, because in a
// directory like /tmp the kernel refuses files of other users.
func machineFile(name string) string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("duestream-redistest-%d-%s", os.Getuid(), name))
}

// Program returns the path of redis-server or valkey-server, for a test of code that starts a server. If there is
// neither, it installs redis-server, or fails the test.
func Program(t testing.TB) string {
	t.Helper()
	if serverBinary() == "" {
		if err := installServer(); err != nil {
			t.Fatalf("redistest: this test needs a server program: %v", err)
		}
	}
	return serverBinary()
}
