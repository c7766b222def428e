//go:build unix

package term

import (
	"os"
	"os/signal"
	"syscall"
)

// Resizes tells when the terminal got another size, until stop is called.
func Resizes() (resized <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGWINCH)
	return c, func() { signal.Stop(c) }
}
