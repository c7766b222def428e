// Package docs has tests of the documents. It executes their transcripts, and checks their programs, links, lengths and
// log lines.
package docs
