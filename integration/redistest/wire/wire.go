// Package wire is what package redistest and its helper process say to each other: one request and one reply a line, in JSON, in
// any order.
package wire

// What a Request asks for.
const (
	Engine    = "engine"    // connect to the local Docker engine, once
	Has       = "has"       // is the image there
	Pull      = "pull"      // fetch the image
	Create    = "create"    // run the image; the reply names the container
	Start     = "start"     // a container again
	Kill      = "kill"      // with SIGKILL, and wait until it has ended
	Stop      = "stop"      // with SIGTERM, likewise
	Pause     = "pause"     // and its clock goes on
	Resume    = "resume"    // after a pause
	End       = "end"       // remove a container for good
	InProcess = "inprocess" // start an in-process server; the reply names its address
	Close     = "close"     // the in-process server at an address
)

// Labels of containers: until when one may live, in Unix seconds, and whose it is, as host/pid. The helper process removes by
// them what test processes that were killed have left.
const (
	LabelExpires = "duestream.redistest.expires"
	LabelOwner   = "duestream.redistest.owner"
)

// Request asks the helper process for one thing.
type Request struct {
	ID      int
	Op      string
	Subject string `json:",omitempty"` // image, container or address

	// Of Create.
	Name     string            `json:",omitempty"`
	Port     int               `json:",omitempty"` // of 127.0.0.1
	Dir      string            `json:",omitempty"` // mounted as /data, and kept
	Args     []string          `json:",omitempty"`
	Env      []string          `json:",omitempty"`
	Labels   map[string]string `json:",omitempty"`
	Lifetime uint              `json:",omitempty"` // seconds
}

// Reply answers the request with its ID.
type Reply struct {
	ID    int
	Text  string `json:",omitempty"`
	Error string `json:",omitempty"`
}
