package metrics

// counterHelp lists the counters, each with its help text and its labels.
var counterHelp = []struct {
	name, help string
	labels     []string
}{
	{"enqueued", "Accepted messages: scheduled, or put directly into the stream.", byQueue},
	{"enqueued_ready", "Accepted messages that were due already, and were put directly into the stream.", byQueue},
	{"duplicates", "Messages that were refused because another message has or had their ID.", byQueue},
	{"cancelled", "Messages removed from the schedule, retries included.", byQueue},
	{"rescheduled", "Messages moved to another due time, retries included.", byQueue},
	{"heartbeats", "Heartbeats that succeeded.", nil},
	{"reconnects", "Outages after which a part reached Redis again.", []string{"part"}},
	{"drained", "Messages that became ready: moved from the schedule into the stream.", byQueue},
	{"freed", "Entries that a bridge freed, for workers that only run XACK.", byQueue},
	{"windows_ended", "IDs that were forgotten because their dedup window had ended.", byQueue},
	{"orphans", "Deleted bodies (payload or meta) without a scheduled message.", byQueue},
	{"reclaimed", "Abandoned deliveries that were taken back: retried, dead-lettered, skipped or cancelled.", byGroup},
	{"delivered", "Deliveries given to a handler.", byGroup},
	{"acknowledged", "Deliveries that were acknowledged for the group.", byGroup},
	{"retried", "Deliveries that were scheduled for another attempt, by the reason.", byReason},
	{"dead_lettered", "Messages that became dead letters, by the reason as far as this process knows it.", byReason},
	{"released", "Deliveries given back with the same attempt.", byGroup},
	{"snoozed", "Deliveries postponed with the same attempt.", byGroup},
	{"cancelled_deliveries", "Deliveries that ended because the message was cancelled while a worker held it.", byGroup},
	{"skipped", "Deliveries for another group, which were acknowledged without a handler.", byGroup},
	{"lost", "Deliveries that another client had taken before the handler returned.", byGroup},
	{"unknown", "Deliveries whose outcome this process does not know.", byGroup},
	{"stuck", "Deliveries that stay pending because the stream of dead letters refused them.", byGroup},
	{"handler_timeouts", "Handlers whose contexts were cancelled because they exceeded their timeout.", byGroup},
	{"handlers_abandoned", "Handlers that were abandoned because they ignored their cancelled contexts.", byGroup},
	{"redriven", "Dead letters scheduled again by this process.", byQueue},
	{"purged", "Dead letters deleted by this process.", byQueue},
}

var (
	byQueue  = []string{"queue"}
	byGroup  = []string{"queue", "group"}
	byReason = []string{"queue", "group", "reason"}
)

// labelsOf returns the values of a counter's labels.
func labelsOf(name string, key seriesKey, reason string) []string {
	for _, c := range counterHelp {
		if c.name != name {
			continue
		}
		switch len(c.labels) {
		case 0:
			return nil
		case 1:
			if c.labels[0] == "queue" {
				return []string{key.queue}
			}
			return []string{reason}
		case 2:
			return []string{key.queue, key.group}
		}
		return []string{key.queue, key.group, reason}
	}
	panic("no counter is called " + name) // every name in counterOf is in counterHelp
}
