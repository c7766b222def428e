package deadletter

import (
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// Errors of one cause differ in IDs, times and addresses. foldError must replace these by #, and must keep numbers that
// name the cause, such as a status.
func TestErrorsAreFoldedByWhatDiffersFromMessageToMessage(t *testing.T) {
	for text, want := range map[string]string{
		"POST /hook: status 404":                                  "POST /hook: status 404",
		"POST /hook: status 503\nbody":                            "POST /hook: status 503",
		"exit status 1":                                           "exit status 1",
		"ORA-00942: table or view does not exist":                 "ORA-00942: table or view does not exist",
		"Error 1040: too many connections":                        "Error 1040: too many connections",
		"order-42 has no card":                                    "order-# has no card",
		"order 1234567 has no card":                               "order # has no card",
		"user_7: job7 failed":                                     "user_#: job# failed",
		"dial tcp 10.0.0.7:5432: connection refused":              "dial tcp #: connection refused",
		"dial tcp [2001:db8::1]:443: connection refused":          "dial tcp #: connection refused",
		"db.internal:5432 is away":                                "db.internal# is away",
		"request 3f2504e0-4f89-11d3-9a0c-0305e82c3301 failed":     "request # failed",
		"message 01J8XYZ9ABCDEFGHJKMNPQRSTV is gone":              "message # is gone",
		"commit 9fceb02d0ae598e95dc970b74767f19372d61af8 is lost": "commit # is lost",
		"timed out after 1.502345s":                               "timed out after #",
		"timed out after 30s":                                     "timed out after #",
		"timeout after 30 s at 10.0.0.1:25":                       "timeout after # at #",
		"decade facade deadbeef":                                  "decade facade deadbeef",
		"":                                                        "",
	} {
		redistest.Want(t, text, foldError(text), want)
	}
}

// Another program may store an error of any length, and a summary holds the errors of many letters. So only the
// beginning of a long line may count.
func TestALongErrorIsFoldedToItsBeginning(t *testing.T) {
	long := "é" + strings.Repeat("x", 1<<20)
	got := foldError(long)
	if len(got) > foldBytes || !strings.HasPrefix(got, "éxxx") {
		t.Errorf("%d bytes: %.20s", len(got), got)
	}
	redistest.Want(t, "the same kind", foldError(long+"end"), got)
}
