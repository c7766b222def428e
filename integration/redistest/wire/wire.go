// Package wire defines the messages between package redistest and its helper process: one request or reply per line,
// in JSON. Replies may come in any order.
package wire

// The operations that a Request asks for.
const (
	Engine    = "engine"    // connect to the local Docker engine, once
	Has       = "has"       // ask whether the image is there
	Pull      = "pull"      // fetch the image
	Create    = "create"    // run the image; the reply names the container
	Start     = "start"     // start a container again
	Kill      = "kill"      // send SIGKILL, and wait until it has ended
	Stop      = "stop"      // send SIGTERM, and wait until it has ended
	Pause     = "pause"     // pause it; its clock continues
	Resume    = "resume"    // continue after a pause
	End       = "end"       // remove a container for good
	InProcess = "inprocess" // start an in-process server; the reply names its address
	Close     = "close"     // close the in-process server at an address
)

// Labels of containers. With them, a helper process can find and remove the containers of test processes that were
// killed.
const (
	LabelExpires = "duestream.redistest.expires" // when the container must end, in Unix seconds
	LabelOwner   = "duestream.redistest.owner"   // the test process to which it belongs, as host/pid
)

// Request asks the helper process for one operation.
type Request struct {
	ID      int
	Op      string
	Subject string `json:",omitempty"` // image, container or address

	// Only for Create.
	Name     string            `json:",omitempty"`
	Port     int               `json:",omitempty"` // of 127.0.0.1
	Dir      string            `json:",omitempty"` // mounted as /data, and kept
	Args     []string          `json:",omitempty"`
	Env      []string          `json:",omitempty"`
	Labels   map[string]string `json:",omitempty"`
	Lifetime uint              `json:",omitempty"` // seconds
}

// Reply answers the request that has the same ID.
type Reply struct {
	ID    int
	Text  string `json:",omitempty"`
	Error string `json:",omitempty"`
}
