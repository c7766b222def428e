package lua

import "slices"

// usersOf names, for each script, the users of docs/OPERATIONS.md whose programs run it. Nobody keeps it true by hand: package
// integration/acl finds in the sources who can run what, and fails when this says something else. The operator runs all of them.
var usersOf = map[string][]string{
	"ack": {"worker"}, "cancel": {"producer"}, "cancel_retries": {"producer"}, "configure": {"bridge"}, "drain": {"bridge"},
	"drop_consumer": {"bridge", "worker"},
	"enqueue":       {"producer"}, "enqueue_fresh": {"producer"}, "ensure_group": {"worker"}, "expire": nil, "export": nil,
	"extend": {"worker"}, "find_lost": {"doctor"},
	"find_orphans": {"doctor"}, "find_unfinished": {"bridge"}, "heartbeat": {"bridge"}, "orphans": {"bridge"}, "pass_turns": {"bridge"},
	"plan": {"bridge"}, "recur": {"bridge"}, "remove_recurrence": {"bridge"}, "run_recurrence": nil,
	"receive": nil, "reclaim": {"bridge"}, "redrive": nil, "register": {"bridge", "producer", "worker"}, "reschedule": {"producer"},
	"reschedule_retries": {"producer"}, "restore": nil,
	"retry": {"worker"}, "signal": {"bridge", "producer", "worker"}, "survey": {"bridge"}, "take": nil, "trim": {"bridge"},
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
