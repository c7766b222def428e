// Serve gives the tests of a package a server without their importing package redistest: see [redistest.Serve].
package main

import (
	"fmt"
	"os"

	"github.com/duestream/duestream/integration/redistest"
)

func main() {
	if err := redistest.Serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
