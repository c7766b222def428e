package stream

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
)

// If two thousand messages fail at once, the log must have a few lines that name messages, and lines that count the
// failures left out. When the worker has ended, both together must account for all messages. Regression: the line of a
// panic lacked the attempt.
func TestAFloodOfFailuresIsAFewLines(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Policy(map[string]string{"max_attempts": "1"})
	var log queuetest.LogBook
	const messages = 2000
	r.Groups("g")
	r.Fill(messages)
	w, stop := r.start(WorkerConfig{Concurrency: 200, Logger: log.Logger(), Handler: func(_ context.Context, m *Message) error {
		if n, _ := strconv.Atoi(strings.TrimPrefix(m.ID, "m-")); n%10 == 0 {
			panic("boom")
		}
		return DeadLetter(errors.New("never"))
	}})
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		return w.Stats().Dead == messages, fmt.Sprintf("%+v", w.Stats())
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for text, keys := range map[string]string{
		"msg=dead-lettered ":      "queue group id entry attempt error",
		`msg="handler panicked" `: "queue group id entry attempt panic stack",
	} {
		named, leftOut := 0, 0 // failures with a line of their own, and the others
		for _, line := range log.Lines(text) {
			if n := regexp.MustCompile(` left_out=(\d+) `).FindStringSubmatch(line); n != nil {
				count, _ := strconv.Atoi(n[1])
				leftOut += count
				continue
			}
			named++
			for key := range strings.FieldsSeq(keys) {
				if !strings.Contains(line, " "+key+"=") {
					t.Fatalf("no %s in %s", key, line)
				}
			}
		}
		want := int(w.Stats().Dead)
		if strings.Contains(text, "panicked") {
			want = messages / 10
		}
		if named+leftOut != want || named > 200 || leftOut == 0 {
			t.Errorf("%s: %d lines, %d left out", text, named, leftOut)
		}
	}
}
