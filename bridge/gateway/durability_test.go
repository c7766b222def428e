package gateway

import (
	"net/http"
	"testing"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// replicated makes the gateway wait until one replica has confirmed each write.
func replicated(c *Config) { c.Durability = bridge.Replicated(1) }

// Without a replica's confirmation a message is stored, but the answer is an error, also when the request is repeated.
// Regression: a gateway answered 201 for a message that no replica had, and a failover lost the message.
func TestAnswersWaitForTheDurability(t *testing.T) {
	t.Parallel()
	t.Run("with a replica", func(t *testing.T) {
		t.Parallel()
		r := newRigAt(t, redistest.Cluster(t, 1, 1).URL(), "durable", replicated)
		r.do("POST", "/v1/queues/q/messages?id=a&in_ms=600000", "").want(http.StatusCreated)
		r.do("POST", "/v1/queues/q/messages?id=a&in_ms=600000", "").refused(http.StatusConflict, typeDuplicate)
		r.do("PATCH", "/v1/queues/q/messages/a?in_ms=900000", "").want(http.StatusOK)
		r.do("DELETE", "/v1/queues/q/messages/a", "").want(http.StatusNoContent)
	})
	t.Run("without one", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, replicated)
		for range 2 {
			r.do("POST", "/v1/queues/q/messages?id=a&in_ms=600000", "").refused(http.StatusServiceUnavailable, typeUncertain)
			r.do("POST", "/v1/queues/q/messages?in_ms=600000", "", "Idempotency-Key: k").
				refused(http.StatusServiceUnavailable, typeUncertain)
		}
		r.do("GET", "/v1/queues/q/messages/a", "").want(http.StatusOK).has(`"state":"scheduled"`)
		r.do("PATCH", "/v1/queues/q/messages/a?in_ms=900000", "").refused(http.StatusServiceUnavailable, typeUncertain)
		r.do("DELETE", "/v1/queues/q/messages/a", "").refused(http.StatusServiceUnavailable, typeUncertain)
		r.do("PUT", "/api/ns/q?delay=600", "job", "X-Token: "+r.token).want(http.StatusServiceUnavailable).
			has("but the store did not confirm")
	})
}
