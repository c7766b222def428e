package lua

import "slices"

// usersOf names, for each script, the users of docs/operations/users.md whose programs run it. Package integration/acl
// derives that from the sources, too, and fails if this differs. The operator runs all scripts.
var usersOf = map[string][]string{
	"ack": {"gateway", "worker"}, "ack_result": {"worker"}, "cancel": {"gateway", "producer"},
	"cancel_entries": {"gateway"},
	"cancel_retries": {"gateway", "producer"}, "claim": {"worker"},
	"configure": {"bridge", "gateway"}, "delete_empty": nil,
	"drain":         {"bridge", "gateway"},
	"drop_consumer": {"bridge", "worker"}, "drop_groups": nil,
	"enqueue": {"bridge", "gateway", "producer"}, "enqueue_fresh": {"gateway", "producer"},
	"enqueue_one":  {"gateway", "producer"},
	"ensure_group": {"gateway", "worker"}, "expire": {"gateway"}, "export": {"bridge"},
	"glance": {"gateway"},
	"extend": {"gateway", "worker"}, "find_entries": {"gateway"}, "find_lost": {"doctor"},
	"find_orphans": {"doctor"}, "find_unfinished": {"bridge", "gateway"}, "heartbeat": {"bridge"},
	"orphans": {"bridge"}, "pass_turns": {"bridge"},
	"plan": {"bridge", "gateway"}, "recur": {"bridge", "gateway"}, "remove_recurrence": {"bridge", "gateway"},
	"run_recurrence": {"gateway"},
	"receive":        {"gateway"}, "reclaim": {"bridge"}, "redrive": {"gateway"},
	"register": {"bridge", "gateway", "producer", "worker"}, "reschedule": {"gateway", "producer"},
	"reschedule_retries": {"gateway", "producer"}, "restore": nil,
	"retry": {"gateway", "worker"}, "save_progress": {"worker"},
	"search_due": {"gateway"}, "search_entries": {"gateway"}, "set_policy": {"gateway"},
	"set_target": nil,
	"signal":     {"bridge", "gateway", "producer", "worker"}, "survey": {"bridge"}, "take": {"gateway", "worker"},
	"trim":     {"bridge"},
	"versions": {"gateway", "producer"}, "withdraw": {"bridge"},
}

// Users returns the documented users who may run a script, in order.
func Users(script string) []string {
	users := append(slices.Clone(usersOf[script]), "operator")
	slices.Sort(users)
	return users
}

// Scripts returns the names of all scripts, in order.
func Scripts() (names []string) {
	for name := range usersOf {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
