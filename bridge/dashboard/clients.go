package dashboard

import (
	"errors"
	"sync"

	"github.com/duestream/duestream/bridge"
)

// maxClients limits the tokens with a client of their own. A client keeps some hundred bytes for each queue.
const maxClients = 64

// clients holds a client for each token that has changed messages, so that histories name the token. The client without
// a name serves the tokens beyond maxClients.
type clients struct {
	cfg bridge.ClientConfig

	mu  sync.Mutex
	all map[string]*bridge.Client // by the name of the token; "" = without a name
}

// newClients returns clients with a configuration. The error names its faults.
func newClients(cfg bridge.ClientConfig) (*clients, error) {
	unnamed, err := bridge.NewClient(cfg)
	if err != nil {
		return nil, err
	}
	return &clients{cfg: cfg, all: map[string]*bridge.Client{"": unnamed}}, nil
}

// of returns the client of a token.
func (c *clients) of(token string) *bridge.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.all[token]; one != nil {
		return one
	}
	if len(c.all) > maxClients {
		return c.all[""]
	}
	cfg := c.cfg
	cfg.Name = actorOf(token)
	one, err := bridge.NewClient(cfg)
	if err != nil { // the name does not fit into a history
		return c.all[""]
	}
	c.all[token] = one
	return one
}

// Close closes all clients. Nobody may call of any more.
func (c *clients) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, one := range c.all {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// actorOf returns the name of a token in histories and in records of changes.
func actorOf(token string) string { return "token " + token }

// client returns the client that names the viewer's token in histories.
func (q *request) client() *bridge.Client { return q.clients.of(q.grant.Name()) }
