package gateway

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge/access"
)

var methods = []string{http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete}

// route is an operation of the API. A request with a parameter that is not in query is refused.
type route struct {
	name, method, pattern string
	verb                  access.Verb // that the token must allow; "" = no token is needed
	query                 string      // names of parameters, separated by spaces
	handler               handler
	audit                 bool // it is logged as an operator's action
	stream                bool // it may run longer than Config.Timeout
	chargesItself         bool // the handler itself charges the token's rate, or the route costs nothing
}

// handler returns a status and a value to answer with as JSON, or an error. If it writes the answer itself it returns
// zeros.
type handler func(*call) (status int, body any, err error)

const (
	queuePath      = "/v1/queues/{queue}"
	messagePath    = queuePath + "/messages/{id}"
	letterPath     = queuePath + "/dead/{id}"
	recurrencePath = queuePath + "/recurrences/{id}"
)

// routes holds all routes. It is filled in init because handlers read it.
var routes []route

func init() { routes = table() }

func table() []route {
	const message = "id in_ms at_ms spread_ms max_attempts retry_delays_ms retry_for_ms max_snoozes max_crashes " +
		"handler_timeout_ms expires_ms dedup_ms replace key"
	const receiving = "group count within_ms wait_ms"
	const letters = "group reason error id older_than_ms newer_than_ms limit newest"
	return []route{
		{name: "document", method: http.MethodGet, pattern: "/v1/openapi.json", handler: document},

		{name: "publish", method: http.MethodPost, pattern: queuePath + "/messages", verb: access.Publish, query: message,
			handler: publish},
		{name: "publish many", method: http.MethodPost, pattern: queuePath + "/batch", verb: access.Publish,
			handler: publishMany, chargesItself: true, stream: true},
		{name: "get", method: http.MethodGet, pattern: messagePath, verb: access.Publish, handler: get},
		{name: "cancel", method: http.MethodDelete, pattern: messagePath, verb: access.Publish, query: "running group",
			handler: cancel},
		{name: "reschedule", method: http.MethodPatch, pattern: messagePath, verb: access.Publish, query: "in_ms at_ms",
			handler: reschedule},

		{name: "receive", method: http.MethodPost, pattern: queuePath + "/deliveries", verb: access.Consume, query: receiving,
			handler: receive, stream: true},
		{name: "receive of several", method: http.MethodPost, pattern: "/v1/deliveries", verb: access.Consume,
			query: receiving + " queues weights", handler: receiveOfSeveral, stream: true},
		{name: "settle", method: http.MethodPost, pattern: "/v1/settlements", verb: access.Consume, handler: settle,
			chargesItself: true},

		{name: "list queues", method: http.MethodGet, pattern: "/v1/queues", verb: access.Operate, handler: queues},
		{name: "find", method: http.MethodGet, pattern: "/v1/messages/{id}", verb: access.Operate, handler: find},
		{name: "stats", method: http.MethodGet, pattern: queuePath + "/stats", verb: access.Operate, handler: stats},
		{name: "live stats", method: http.MethodGet, pattern: "/v1/events/stats", verb: access.Operate,
			query: "interval_ms queues", handler: events, stream: true},
		{name: "peek", method: http.MethodGet, pattern: queuePath + "/schedule", verb: access.Operate,
			query:   "limit payloads",
			handler: peek},
		{name: "pending", method: http.MethodGet, pattern: queuePath + "/pending", verb: access.Operate,
			query: "group consumer min_idle_ms limit", handler: pending},
		{name: "consumers", method: http.MethodGet, pattern: queuePath + "/consumers", verb: access.Operate, query: "group",
			handler: consumers},
		{name: "pause", method: http.MethodPost, pattern: queuePath + "/pause", verb: access.Operate, query: "workers",
			handler: pause, audit: true},
		{name: "resume", method: http.MethodPost, pattern: queuePath + "/resume", verb: access.Operate, handler: resume,
			audit: true},

		{name: "read policy", method: http.MethodGet, pattern: queuePath + "/policy", verb: access.Operate, query: "group",
			handler: readPolicy},
		{name: "change policy", method: http.MethodPatch, pattern: queuePath + "/policy", verb: access.Operate,
			query:   "group",
			handler: changePolicy, audit: true},

		{name: "list dead letters", method: http.MethodGet, pattern: queuePath + "/dead", verb: access.Operate,
			query:   letters,
			handler: listLetters},
		{name: "show dead letter", method: http.MethodGet, pattern: letterPath, verb: access.Operate, handler: showLetter},
		{name: "purge dead letters", method: http.MethodDelete, pattern: queuePath + "/dead", verb: access.Operate,
			query: letters + " all", handler: purgeLetters, audit: true},
		{name: "purge dead letter", method: http.MethodDelete, pattern: letterPath, verb: access.Operate,
			handler: purgeLetter,
			audit:   true},
		{name: "redrive dead letters", method: http.MethodPost, pattern: queuePath + "/dead/redrive", verb: access.Operate,
			query: letters + " all in_ms spread_ms to rate dry_run", handler: redriveLetters, audit: true},
		{name: "redrive dead letter", method: http.MethodPost, pattern: letterPath + "/redrive", verb: access.Operate,
			query: "in_ms to replace_payload", handler: redriveLetter, audit: true},

		{name: "list recurrences", method: http.MethodGet, pattern: queuePath + "/recurrences", verb: access.Operate,
			handler: listRecurrences},
		{name: "show recurrence", method: http.MethodGet, pattern: recurrencePath, verb: access.Operate,
			handler: showRecurrence},
		{name: "put recurrence", method: http.MethodPut, pattern: recurrencePath, verb: access.Operate,
			handler: putRecurrence,
			audit:   true},
		{name: "remove recurrence", method: http.MethodDelete, pattern: recurrencePath, verb: access.Operate,
			handler: removeRecurrence, audit: true},
		{name: "pause recurrence", method: http.MethodPost, pattern: recurrencePath + "/pause", verb: access.Operate,
			handler: pauseRecurrence, audit: true},
		{name: "resume recurrence", method: http.MethodPost, pattern: recurrencePath + "/resume", verb: access.Operate,
			handler: resumeRecurrence, audit: true},
		{name: "run recurrence", method: http.MethodPost, pattern: recurrencePath + "/run", verb: access.Operate,
			handler: runRecurrence, audit: true},
	}
}

// query holds the parameters of a request.
type query map[string]string

// parseQuery reads the parameters. It refuses names that the route does not know, and a name that is given twice.
func parseQuery(raw, names string) (query, error) {
	if raw == "" {
		return nil, nil
	}
	all, err := url.ParseQuery(raw)
	if err != nil {
		return nil, malformed("the query cannot be read")
	}
	q := query{}
	for name, values := range all {
		switch {
		case !slices.Contains(strings.Fields(names), name):
			return nil, &problem{Type: typeMalformed, Status: http.StatusBadRequest,
				Detail: "the query has a name that is not known here",
				fault:  fault{Field: cut(name), Limit: "must be one of: " + names}}
		case len(values) > 1:
			return nil, &problem{Type: typeMalformed, Status: http.StatusBadRequest, Detail: "the query has a name twice",
				fault: fault{Field: name, Limit: "must be given once"}}
		case !utf8.ValidString(values[0]):
			return nil, &problem{Type: typeMalformed, Status: http.StatusBadRequest, Detail: "the query is not UTF-8",
				fault: fault{Field: name, Limit: "must be UTF-8"}}
		}
		q[name] = values[0]
	}
	return q, nil
}

func cut(text string) string {
	if len(text) > 64 {
		text = text[:64] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}
