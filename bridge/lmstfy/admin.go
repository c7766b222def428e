package lmstfy

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

const (
	adminTimeout     = 10 * time.Second
	maxAdminBody     = 64 << 10 // bytes
	maxAdminRequests = 16       // at a time, so that with a slow Redis connections are left for health checks
	onlyPool         = "default"
	tokenPrefix      = "lmstfy." // of the names of tokens that this API makes
	indent           = "    "
)

// adminServer serves the API of lmstfy's admin listener, for operators. It does not authenticate them.
type adminServer struct {
	op      *admin.Admin
	version string
	log     *slog.Logger
	places  chan struct{} // holds one for each request in progress
}

// NewAdmin returns a handler for the API of lmstfy's admin listener, at AdminPaths. The handler does not authenticate
// its callers: authenticate them before. NewAdmin fails if op is nil. If log is nil, log lines are discarded. Redis is
// not touched.
func NewAdmin(op *admin.Admin, version string, log *slog.Logger) (http.Handler, error) {
	if err := lua.Faults("lmstfy", lua.Required("admin", op != nil)); err != nil {
		return nil, err
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	a := &adminServer{op: op, version: version, log: log, places: make(chan struct{}, maxAdminRequests)}
	mux := http.NewServeMux()
	for pattern, answer := range map[string]func(*adminCall) (int, any, error){
		"GET /token/{namespace}":                  a.tokens,
		"POST /token/{namespace}":                 a.newToken,
		"DELETE /token/{namespace}/{token}":       a.removeToken,
		"GET /token/{namespace}/{token}/limit":    a.limit,
		"POST /token/{namespace}/{token}/limit":   a.setLimit,
		"PUT /token/{namespace}/{token}/limit":    a.setLimit,
		"DELETE /token/{namespace}/{token}/limit": a.removeLimit,
		"GET /limits":  a.limits,
		"GET /info":    a.info,
		"GET /pools":   func(*adminCall) (int, any, error) { return http.StatusOK, indented{[]string{onlyPool}}, nil },
		"GET /version": a.versions,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { a.answer(w, r, answer) })
	}
	return mux, nil
}

// AdminPaths returns the beginnings of the paths that NewAdmin serves.
func AdminPaths() []string { return []string{"/token/", "/limits", "/info", "/pools", "/version"} }

// adminCall is a request that is being answered.
type adminCall struct {
	ctx         context.Context
	r           *http.Request
	namespace   string
	pool, token string // the parts of POOL:TOKEN in the path; if the path has no token, pool is from the query
	poolToken   string // POOL:TOKEN unparsed, because a token's name may hold a colon
	unchanged   bool   // nothing had to be changed
}

// indented is a JSON answer that is written with one member a line.
type indented struct{ value any }

// plain is an answer that is sent as text/plain.
type plain string

func (a *adminServer) answer(w http.ResponseWriter, r *http.Request, answer func(*adminCall) (int, any, error)) {
	select {
	case a.places <- struct{}{}:
		defer func() { <-a.places }()
	default:
		fail(a.log, w, r, errBusy)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), adminTimeout)
	defer cancel()
	r.Body = http.MaxBytesReader(w, r.Body, maxAdminBody)
	c := &adminCall{ctx: ctx, r: r, namespace: r.PathValue("namespace"), pool: r.URL.Query().Get("pool"),
		token: r.PathValue("token"), poolToken: r.PathValue("token")}
	if c.token != "" {
		c.pool = ""
		if pool, token, is := strings.Cut(c.token, ":"); is {
			c.pool, c.token = pool, token
		}
	}
	status, body, err := answer(c)
	if errors.Is(err, bridge.ErrInvalid) {
		err = failure(http.StatusBadRequest, err.Error())
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		name, _, _ := r.BasicAuth()
		a.log.LogAttrs(ctx, slog.LevelInfo, "an operator acts", slog.Bool("audit", true), slog.String("account", name),
			slog.String("action", "lmstfy: "+r.Pattern), slog.String("namespace", cut(c.namespace)),
			slog.Bool("done", err == nil && status < http.StatusBadRequest && !c.unchanged))
	}
	if err != nil {
		fail(a.log, w, r, err)
		return
	}
	switch body := body.(type) {
	case plain:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, string(body))
	case indented:
		writeText(w, status, text(body.value, indent))
	default:
		write(w, status, body)
	}
}

// cut shortens a caller's text for the log.
func cut(name string) string { return name[:min(len(name), 255)] }

var (
	errPool        = failure(http.StatusBadRequest, "the pool was not exists")
	errTokenExists = failure(http.StatusBadRequest, "the token has already existed")
	errNoSuchToken = failure(http.StatusNotFound, "token not found")
)

// hasPool returns errPool unless the pool is "default" or not given.
func (c *adminCall) hasPool() error {
	if c.pool != "" && c.pool != onlyPool {
		return errPool
	}
	return nil
}

// isFor reports whether a token is for exactly one namespace: for all queues of the namespace, and for no other queue.
func isFor(t *admin.StoredToken, namespace string) bool {
	return t.Problem == "" && slices.Equal(t.Queues, []string{namespace + ":*"})
}

// find returns the token that the path gives by its secret or its name. A name may hold a colon. The token must be for
// exactly the namespace of the path.
func (a *adminServer) find(c *adminCall) (admin.StoredToken, error) {
	all, err := a.op.Tokens(c.ctx)
	if err != nil {
		return admin.StoredToken{}, err
	}
	for _, t := range all {
		if isFor(&t, c.namespace) && t.Name == c.poolToken {
			return t, nil
		}
	}
	if err := c.hasPool(); err != nil {
		return admin.StoredToken{}, err
	}
	digest, isSecret := access.Digest(c.token)
	for _, t := range all {
		if isFor(&t, c.namespace) && (t.Name == c.token || isSecret && t.Digest == digest) {
			return t, nil
		}
	}
	return admin.StoredToken{}, errNoSuchToken
}

// tokens lists the tokens of a namespace. It shows names in place of secrets, because secrets are not stored.
func (a *adminServer) tokens(c *adminCall) (int, any, error) {
	if err := c.hasPool(); err != nil {
		return 0, nil, err
	}
	all, err := a.op.Tokens(c.ctx)
	if err != nil {
		return 0, nil, err
	}
	found := map[string]string{}
	for _, t := range all {
		name := t.Name
		if c.pool != "" {
			name = c.pool + ":" + name
		}
		if isFor(&t, c.namespace) && !t.Expired {
			found[name] = t.Description
		}
	}
	return http.StatusOK, indented{map[string]any{"tokens": found}}, nil
}

func (a *adminServer) newToken(c *adminCall) (int, any, error) {
	_ = c.r.ParseMultipartForm(maxAdminBody) // reads any form; a malformed form gives no values
	description, secret := c.r.Form.Get("description"), c.r.Form.Get("token")
	refuse := func(text string) (int, any, error) { return 0, nil, failure(http.StatusBadRequest, text) }
	_, tooLong := QueueName(c.namespace, "q") // the error, where isName accepts the namespace
	switch {
	case description == "":
		return refuse("invalid description")
	case secret != "" && len(secret) < 20:
		return refuse("the user token was too short")
	case !isName(c.namespace):
		return refuse("namespace name contains forbidden characters")
	case tooLong != nil:
		return refuse("the namespace name was too long")
	}
	if pool, rest, is := strings.Cut(secret, ":"); is {
		c.pool, secret = pool, rest
	}
	if err := c.hasPool(); err != nil {
		return 0, nil, err
	}
	// Operate includes the verb inspect, which gateways of an older release refuse.
	allVerbs := []admin.Verb{access.Publish, access.Consume, access.Operate}
	t := admin.Token{Name: newName(c.namespace), Description: description, Verbs: allVerbs,
		Queues: []string{c.namespace + ":*"}}
	var err error
	if secret != "" {
		err = a.op.AddChosenToken(c.ctx, t, secret)
	} else {
		secret, err = a.op.AddToken(c.ctx, t)
	}
	switch {
	case errors.Is(err, admin.ErrTokenExists):
		return 0, nil, errTokenExists
	case err != nil:
		return 0, nil, err
	}
	if c.pool == onlyPool {
		secret = onlyPool + ":" + secret
	}
	return http.StatusCreated, indented{map[string]string{"token": secret}}, nil
}

// newName returns a unique name for a token, with its namespace in it.
func newName(namespace string) string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	rest := "." + hex.EncodeToString(random[:])
	return tokenPrefix + namespace[:min(len(namespace), access.MaxNameBytes-len(tokenPrefix)-len(rest))] + rest
}

func (a *adminServer) removeToken(c *adminCall) (int, any, error) {
	t, err := a.find(c)
	if err == nil {
		err = a.op.RemoveToken(c.ctx, t.Name)
	}
	if errors.Is(err, errNoSuchToken) || errors.Is(err, admin.ErrNoToken) {
		c.unchanged, err = true, nil // lmstfy's server answers 204 too
	}
	return http.StatusNoContent, nil, err
}

// limiter is the JSON form of a token's limits in lmstfy's API.
type limiter struct {
	Read     int `json:"read"`     // jobs consumed; 0 = no limit
	Write    int `json:"write"`    // jobs published; 0 = no limit
	Interval int `json:"interval"` // seconds
}

func limiterOf(l *admin.Limits) limiter { return limiter{l.Consume, l.Publish, l.Interval} }

func (l limiter) limits() *admin.Limits {
	return &admin.Limits{Consume: l.Read, Publish: l.Write, Interval: l.Interval}
}

func (a *adminServer) limit(c *adminCall) (int, any, error) {
	t, err := a.find(c)
	switch {
	case errors.Is(err, errNoSuchToken), err == nil && t.Limits == nil:
		return http.StatusNotFound, json.RawMessage("null"), nil
	case err != nil:
		return 0, nil, err
	}
	return http.StatusOK, limiterOf(t.Limits), nil
}

func (a *adminServer) setLimit(c *adminCall) (int, any, error) {
	var l limiter
	if err := json.NewDecoder(c.r.Body).Decode(&l); err != nil {
		return 0, nil, failure(http.StatusBadRequest, "the body must be {\"read\":…,\"write\":…,\"interval\":…}")
	}
	switch {
	case l.Read == 0 && l.Write == 0:
		return http.StatusBadRequest, map[string]any{"limiter": l}, nil
	case l.Interval == 0:
		return 0, nil, failure(http.StatusBadRequest, "interval should be > 0")
	}
	t, err := a.find(c)
	fresh, status := c.r.Method == http.MethodPost, http.StatusOK
	if fresh {
		status = http.StatusCreated
	}
	if err == nil {
		err = a.op.LimitToken(c.ctx, t.Digest, l.limits(), fresh)
	}
	switch {
	case errors.Is(err, admin.ErrTokenExists):
		return 0, nil, failure(http.StatusInternalServerError, "throttler token("+t.Name+") has already exists")
	case errors.Is(err, admin.ErrNoToken):
		return 0, nil, errNoSuchToken
	}
	return status, map[string]any{"limiter": l}, err
}

func (a *adminServer) removeLimit(c *adminCall) (int, any, error) {
	t, err := a.find(c)
	c.unchanged = t.Limits == nil
	if err == nil && !c.unchanged {
		err = a.op.LimitToken(c.ctx, t.Digest, nil, false)
	}
	if errors.Is(err, errNoSuchToken) || errors.Is(err, admin.ErrNoToken) {
		c.unchanged, err = true, nil
	}
	return http.StatusOK, map[string]string{"msg": "success"}, err
}

// tokenLimits is a row of /limits.
type tokenLimits struct {
	Namespace string  `json:"namespace"`
	Token     string  `json:"token"` // the token's name
	Limiter   limiter `json:"limiter"`
}

func (a *adminServer) limits(c *adminCall) (int, any, error) {
	all, err := a.op.Tokens(c.ctx)
	if err != nil {
		return 0, nil, err
	}
	found := []tokenLimits{}
	for _, t := range all {
		if t.Limits == nil || len(t.Queues) != 1 {
			continue
		}
		if namespace, is := strings.CutSuffix(t.Queues[0], ":*"); is && isName(namespace) {
			found = append(found, tokenLimits{namespace, t.Name, limiterOf(t.Limits)})
		}
	}
	return http.StatusOK, found, nil
}

// info lists the queues of each namespace.
func (a *adminServer) info(c *adminCall) (int, any, error) {
	if c.hasPool() != nil {
		return http.StatusOK, plain(""), nil
	}
	queues, err := a.op.Queues(c.ctx)
	if err != nil {
		return 0, nil, err
	}
	found := map[string][]string{}
	for _, name := range queues {
		if namespace, queue, is := SplitQueue(name); is {
			found[namespace] = append(found[namespace], queue)
		}
	}
	return http.StatusOK, plain(append(text(found, indent), '\n')), nil
}

func (a *adminServer) versions(*adminCall) (int, any, error) {
	return http.StatusOK, indented{map[string]string{"build_commit": "", "build_date": "", "version": a.version}}, nil
}
