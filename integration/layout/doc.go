// Package layout holds the tests of how the code is laid out: which package may import which, what a program gets with package
// bridge, and that documents and doc comments show what is there. They read the source and start no server.
package layout
