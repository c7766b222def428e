//go:build !unix

package main

import "os"

// resizes tells nothing here: each frame asks for the size anyway.
func resizes() (resized <-chan os.Signal, stop func()) { return nil, func() {} }
