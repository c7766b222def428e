package scheduler

import (
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/scheduler/producer"
)

// An error must name all wrong settings at once, so that a user does not mend them one by one.
func TestConfigErrorsComeAllAtOnce(t *testing.T) {
	t.Parallel()
	_, err := producer.New(producer.Config{Prefix: "a{b", MaxCommit: -1, MaxCommitBytes: -1})
	for _, want := range []string{"redis", "prefix", `MaxCommit "-1"`, `MaxCommitBytes "-1"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("producer: %v does not name %s", err, want)
		}
	}
	_, err = New(Config{HeartbeatTimeout: time.Second, WakeBlock: 1, DrainLimit: 20_000, DrainMaxBytes: -1, SurveyInterval: -1})
	for _, want := range []string{"redis", `HeartbeatTimeout "1s": must be at least 2s`, "WakeBlock", "DrainLimit",
		"DrainMaxBytes", "SurveyInterval"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("scheduler: %v does not name %s", err, want)
		}
	}
}
