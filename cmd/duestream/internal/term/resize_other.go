//go:build !unix

package term

import "os"

// Resizes tells nothing here: each frame asks for the size anyway.
func Resizes() (resized <-chan os.Signal, stop func()) { return nil, func() {} }
