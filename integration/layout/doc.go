// Package layout tests the layout of the code: which package may import which, what package bridge brings into a
// program, and that documents and doc comments match the code. The tests read the source and start no server.
package layout
