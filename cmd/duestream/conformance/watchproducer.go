package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// producerRules are checked by the commands, replies and answers of a producer.
var producerRules = []Rule{
	{"writes-whole", Good, "7, steps 1 to 4", "A producer writes payload, meta, due time and wake token in this order, in one MULTI or one script: every message, and what it repeats, too."},
	{"wakes", Good, "7, step 4", "Each message that is the earliest of its partition adds a token to the wake stream of that partition, behind the due time, by XADD … MAXLEN 1 *."},
	{"takes-nothing-out", Good, "6 and 7", "A producer that schedules takes nothing out: nothing from the schedule, no payload or meta of another message."},
	{"answers-the-truth", Good, "7 and 15", "A producer answers with ok when Redis has said that it took the message, all of it, and not before."},
	{"repeats-in-place", Good, "16", "What is repeated because its reply was lost goes into the partition of the first try."},
	{"repeats-with-token", Complete, "17 (token)", "A call of duestream_schedule that is repeated has the token of the first try, and no other call has it."},
}

// producelog is the state that a watcher keeps of a producer.
type producelog struct {
	queued  map[int][]*sent     // open transaction, by connection
	units   map[*sent][]*sent   // EXEC → the commands that it executes
	least   map[string]float64  // partition → earliest scheduled due time
	orders  map[string]*ordered // by ID: the latest order
	calls   map[string]string   // token → the call that used it first
	scripts bool                // it has called a script of its own
}

// ordered is a message that a producer was asked to schedule.
type ordered struct {
	key     string // schedule into which the producer put it first
	token   string
	tried   bool
	taken   bool
	refusal string // the last refusal of the server
}

func newProducelog() producelog {
	return producelog{
		queued: map[int][]*sent{}, units: map[*sent][]*sent{}, least: map[string]float64{}, orders: map[string]*ordered{},
		calls: map[string]string{},
	}
}

// ordered records an order before the producer gets it.
func (w *watcher) ordered(o order) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.produce.orders[o.ID] = &ordered{}
}

// answered checks an answer of the producer.
func (w *watcher) answered(a answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.produce.orders[a.ID]
	if o == nil || !a.OK || o.taken {
		return
	}
	switch {
	case o.refusal != "":
		w.broke("answers-the-truth", "message %q was answered with ok, and the server had said: %s", a.ID, o.refusal)
	case !o.tried && !w.produce.scripts: // an answer before the reply is judged by the case ok-when-stored
		w.broke("answers-the-truth", "message %q was answered with ok, and no command that was sent schedules it", a.ID)
	}
}

func (w *watcher) producerAsked(s *sent) {
	p := &w.produce
	switch {
	case s.is("MULTI"):
		p.queued[s.conn] = nil
	case s.inMulti:
		p.queued[s.conn] = append(p.queued[s.conn], s)
	case s.is("EXEC"):
		p.units[s] = p.queued[s.conn]
		w.unit(p.queued[s.conn])
		delete(p.queued, s.conn)
	default:
		w.outside(s)
	}
	w.anywhere(s)
}

// outside checks a command outside a transaction.
func (w *watcher) outside(s *sent) {
	if kind, _ := w.kindOf(s.arg(1)); slices.Contains([]string{"ZADD", "HSET", "HMSET", "HSETNX"}, s.name()) &&
		slices.Contains([]string{"due", "payload", "meta"}, kind) {
		w.brokeBy(s, "writes-whole", "it stands outside a MULTI, so a bridge may see a part of the message")
	}
	if s.is("ZADD") {
		w.tries(s, zaddMembers(s), "")
	}
	if !s.isScript() || !slices.ContainsFunc(s.keys(), w.isSchedule) {
		return
	}
	if c, ok := scheduleCall(s); ok {
		w.tries(s, c.ids, c.token)
		w.token(s, c)
		return
	}
	w.produce.scripts = true
	w.tries(s, w.named(s), "")
}

// anywhere checks a command inside or outside a transaction.
func (w *watcher) anywhere(s *sent) {
	kind, queue := w.kindOf(s.arg(1))
	switch name := s.name(); {
	case kind == "wake" && name == "XADD" && !tokenForm(s):
		w.brokeBy(s, "wakes", "a wake stream holds one token, with an ID that the server gives: MAXLEN 1, without ~, and *")
	case kind == "due" && slices.Contains([]string{"ZREM", "ZPOPMIN", "ZPOPMAX", "BZPOPMIN", "BZPOPMAX", "ZREMRANGEBYSCORE",
		"ZREMRANGEBYRANK", "ZREMRANGEBYLEX"}, name):
		w.brokeBy(s, "takes-nothing-out", "a message that was taken is not delivered then, and nothing was to be cancelled")
	case kind == "dead" && strings.HasPrefix(name, "X") &&
		!slices.Contains([]string{"XRANGE", "XREVRANGE", "XLEN", "XINFO", "XREAD"}, name):
		w.brokeBy(s, "takes-nothing-out", "dead letters are written by bridges and by workers that call the scripts")
	case kind == "bridges" && queue == "" && strings.HasPrefix(name, "ZADD"):
		w.brokeBy(s, "takes-nothing-out", "a bridge that does not live is given queues to look after")
	}
}

// unit checks a transaction that is about to be executed.
func (w *watcher) unit(commands []*sent) {
	last, wakes := map[string]*sent{}, map[string]*sent{} // by partition
	scheduled := map[string]bool{}                        // partition and ID
	var taken []string
	for _, s := range commands {
		kind, queue := w.kindOf(s.arg(1))
		switch {
		case kind == "due" && s.is("ZADD"):
			last[queue] = s
			members := zaddMembers(s)
			for _, id := range members {
				scheduled[queue+" "+id] = true
			}
			w.tries(s, members, "")
		case (kind == "payload" || kind == "meta") && s.writesHash() && scheduled[queue+" "+s.arg(2)]:
			w.brokeBy(s, "writes-whole", "it stands behind the ZADD of the message")
		case (kind == "payload" || kind == "meta") && s.is("HDEL"):
			for _, id := range s.args[2:] {
				taken = append(taken, queue+" "+id)
			}
		case kind == "wake" && queue != "" && s.is("XADD"):
			wakes[queue] = s
		}
	}
	for queue, zadd := range last {
		w.wakesFor(queue, zadd, wakes, slices.Index(commands, wakes[queue]) > slices.Index(commands, zadd))
	}
	for _, one := range taken {
		if queue, id, _ := strings.Cut(one, " "); !scheduled[one] && len(last) > 0 {
			w.broke("takes-nothing-out", "a transaction that does not schedule message %q deletes its payload or meta, in %s", id, queue)
		}
	}
}

func (w *watcher) wakesFor(queue string, zadd *sent, wakes map[string]*sent, behind bool) {
	score, err := strconv.ParseFloat(zadd.score(), 64)
	before, known := w.produce.least[queue]
	earliest := err == nil && (!known || score < before)
	if earliest {
		w.produce.least[queue] = score
	}
	switch {
	case behind:
	case wakes[queue] != nil:
		w.brokeBy(wakes[queue], "wakes", "it stands before the ZADD, so the bridge looks at the schedule before the message is there")
	case len(wakes) > 0:
		w.brokeBy(zadd, "wakes", "the transaction adds a wake token to another partition")
	case earliest:
		w.brokeBy(zadd, "wakes", "the transaction adds no wake token, so the message is up to 5 s late")
	}
}

// tries records that a command schedules messages.
func (w *watcher) tries(s *sent, ids []string, token string) {
	key := s.arg(1)
	if s.isScript() {
		keys := s.keys()
		key = keys[slices.IndexFunc(keys, w.isSchedule)]
	} else if !w.isSchedule(key) {
		return
	}
	for _, id := range ids {
		o := w.produce.orders[id]
		if o == nil {
			continue
		}
		if o.refusal != "" {
			*o = ordered{} // nothing was stored, so this is no repetition
		}
		if o.tried && o.key != key {
			w.brokeBy(s, "repeats-in-place", fmt.Sprintf("it repeats message %q, which it had first put into %s: it may be delivered twice", id, o.key))
		}
		if token != "" && o.token != "" && token != o.token || o.tried && token == "" && o.token != "" && s.isScript() {
			w.brokeBy(s, "repeats-with-token", fmt.Sprintf("it repeats message %q, and not with the token %q of the first try: the script cannot know that it is the same", id, o.token))
		}
		if !o.tried {
			o.key, o.token = key, token
		}
		o.tried, o.refusal = true, ""
	}
}

func (w *watcher) token(s *sent, c call) {
	if c.token == "" {
		return
	}
	if before, known := w.produce.calls[c.token]; known && before != c.what {
		w.brokeBy(s, "repeats-with-token", fmt.Sprintf("its token was that of another call, for %s: the script takes it for a repetition and stores nothing", before))
	}
	w.produce.calls[c.token] = c.what
}

func (w *watcher) producerTold(s *sent) {
	switch {
	case s.inMulti:
	case s.is("EXEC"):
		commands := w.produce.units[s]
		refusal := ""
		if s.reply.isError() {
			refusal = s.reply.text
		} else if s.reply.null {
			refusal = "EXEC did nothing, because a key that was watched has changed"
		}
		for _, q := range commands {
			if refusal == "" && q.answered && q.reply.isError() {
				refusal = fmt.Sprintf("%s, to %s inside the transaction", q.reply.text, q.name())
			}
		}
		for _, q := range commands {
			if q.is("ZADD") && w.isSchedule(q.arg(1)) {
				w.settles(zaddMembers(q), refusal)
			}
		}
	case s.is("ZADD") && w.isSchedule(s.arg(1)):
		w.settles(zaddMembers(s), errorText(s.reply))
	case s.isScript() && slices.ContainsFunc(s.keys(), w.isSchedule):
		c, ok := scheduleCall(s)
		if !ok {
			w.settles(w.named(s), errorText(s.reply))
			return
		}
		for i, id := range c.ids {
			refusal := errorText(s.reply)
			if refusal == "" && 2*i < len(s.reply.list) {
				refusal = verdictText[s.reply.list[2*i].number()]
			}
			w.settles([]string{id}, refusal)
		}
	}
}

// verdictText describes the replies of duestream_schedule that are refusals.
var verdictText = map[int]string{0: "0 (refused as a duplicate), by duestream_schedule",
	-1: "-1 (malformed meta), by duestream_schedule"}

func (w *watcher) settles(ids []string, refusal string) {
	for _, id := range ids {
		if o := w.produce.orders[id]; o != nil {
			o.taken, o.refusal = refusal == "", refusal
		}
	}
}

func errorText(v value) string {
	if v.isError() {
		return v.text
	}
	return ""
}

func (w *watcher) isSchedule(key string) bool {
	kind, queue := w.kindOf(key)
	return kind == "due" && queue != ""
}

// named returns the orders whose ID occurs in the arguments of a producer's own script.
func (w *watcher) named(s *sent) (ids []string) {
	args := s.args[3+len(s.keys()):]
	for _, arg := range args {
		if w.produce.orders[arg] != nil {
			ids = append(ids, arg)
		}
	}
	if len(ids) > 0 {
		return ids
	}
	for id := range w.produce.orders { // one argument may hold several IDs
		if slices.ContainsFunc(args, func(arg string) bool { return strings.Contains(arg, id) }) {
			ids = append(ids, id)
		}
	}
	return ids
}

func (s *sent) arg(i int) string {
	if i < len(s.args) {
		return s.args[i]
	}
	return ""
}

func (s *sent) writesHash() bool {
	return slices.Contains([]string{"HSET", "HMSET", "HSETNX"}, s.name())
}

func (s *sent) isScript() bool {
	return slices.Contains([]string{"EVAL", "EVALSHA", "FCALL"}, s.name())
}

// keys returns the keys of a call of a script or function.
func (s *sent) keys() []string {
	n, err := strconv.Atoi(s.arg(2))
	if err != nil || n < 0 || n > len(s.args)-3 {
		return nil
	}
	return s.args[3 : 3+n]
}

// pairs returns the scores and members of a ZADD.
func (s *sent) pairs() []string {
	i := 2
	for i < len(s.args) && slices.Contains([]string{"NX", "XX", "GT", "LT", "CH", "INCR"}, strings.ToUpper(s.args[i])) {
		i++
	}
	return s.args[min(i, len(s.args)):]
}

func (s *sent) score() string {
	least := ""
	for i, word := range s.pairs() {
		if i%2 == 0 && (least == "" || parse(word) < parse(least)) {
			least = word
		}
	}
	return least
}

func parse(number string) float64 {
	f, _ := strconv.ParseFloat(number, 64)
	return f
}

func zaddMembers(s *sent) (ids []string) {
	for i, word := range s.pairs() {
		if i%2 == 1 {
			ids = append(ids, word)
		}
	}
	return ids
}

// tokenForm reports whether an XADD keeps one token, with an ID of the server.
func tokenForm(s *sent) bool {
	words := s.args[2:]
	if len(words) > 1 && words[1] == "=" {
		words = slices.Delete(slices.Clone(words), 1, 2)
	}
	return len(words) >= 5 && strings.EqualFold(words[0], "MAXLEN") && words[1] == "1" && words[2] == "*"
}

// call is a call of duestream_schedule.
type call struct {
	token string
	ids   []string
	what  string
}

func scheduleCall(s *sent) (c call, ok bool) {
	if !s.is("FCALL") || s.arg(1) != "duestream_schedule" {
		return c, false
	}
	args := withoutActor(s.keys(), s.args[3+len(s.keys()):])
	if len(args) < 8 || (len(args)-3)%5 != 0 {
		return c, false
	}
	c.token = args[0]
	for i := 3; i < len(args); i += 5 {
		c.ids = append(c.ids, args[i])
		c.what += fmt.Sprintf("%q due at %s ", args[i], args[i+1])
	}
	c.what = strings.TrimSpace(c.what)
	return c, true
}
