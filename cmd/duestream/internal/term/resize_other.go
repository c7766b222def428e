//go:build !unix

package term

import "os"

// Resizes does nothing on this system: each frame reads the size anyway.
func Resizes() (resized <-chan os.Signal, stop func()) { return nil, func() {} }
