package redistest

import (
	"bytes"
	"embed"
	"fmt"
	"os/exec"
)

// preload holds the sources of libraries that are put before the C library of a server (LD_PRELOAD).
//
//go:embed preload/*.c
var preload embed.FS

// buildLibrary compiles the source with this name into the file library. If there is no compiler, it tries to install
// one.
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

// installCompiler installs Debian's C compiler.
func installCompiler() error {
	return installPackages("cc on the PATH", func() bool { _, err := exec.LookPath("cc"); return err == nil }, "gcc", "libc6-dev")
}
