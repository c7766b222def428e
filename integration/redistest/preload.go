package redistest

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// preload holds libraries that are put before the C library of a server (LD_PRELOAD).
//
//go:embed preload/*.c
var preload embed.FS

// buildLibrary compiles one of them, with a compiler that it installs first where it can.
func buildLibrary(name, library string) error {
	source, err := preload.ReadFile("preload/" + name)
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("cc"); err != nil {
		if err := installCompiler(); err != nil {
			return err
		}
	}
	cmd := exec.Command("cc", "-shared", "-fPIC", "-O2", "-x", "c", "-o", library, "-")
	cmd.Stdin = bytes.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile %s: %w\n%s", name, err, out)
	}
	return nil
}

// installCompiler installs Debian's C compiler. Test processes take turns; the later ones find it done.
func installCompiler() error {
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return errors.New("no cc on the PATH, and installing one needs apt-get and root")
	}
	return withMachineLock(func() error {
		if _, err := exec.LookPath("cc"); err == nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), installTimeout)
		defer cancel()
		if err := aptGet(ctx, "update"); err != nil {
			return err
		}
		return aptGet(ctx, "install", "-y", "--no-install-recommends", "gcc", "libc6-dev")
	})
}
