//go:build unix

package term

import (
	"os"
	"os/signal"
	"syscall"
)

// Resizes returns a channel that receives when the terminal changes its size, until stop is called.
func Resizes() (resized <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGWINCH)
	return c, func() { signal.Stop(c) }
}
