package linefile

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/message"
)

// ParseMessage parses a line of a file. Fields that the line does not have come from defaults. A line without an ID
// gets an ID that depends only on the line's number and text.
func ParseMessage(line []byte, number int, defaults bridge.NewMessage) (bridge.NewMessage, error) {
	l, err := message.Parse(line)
	if err != nil {
		return bridge.NewMessage{}, err
	}
	if l.Dedup != nil || l.Replace != "" {
		return bridge.NewMessage{}, errors.New("dedup_ms and replace cannot stand in a line; --dedup is for all lines")
	}
	followsPolicy(&l.MaxSnoozes, &defaults.MaxSnoozes)
	followsPolicy(&l.MaxCrashes, &defaults.MaxCrashes)
	m, err := l.Message(defaults)
	if m.ID == "" {
		sum := sha256.Sum256(line)
		m.ID = fmt.Sprintf("line-%d-%s", number, hex.EncodeToString(sum[:16]))
	}
	return m, err
}

// followsPolicy makes a limit of 0 in a line follow the policy of the queue instead of the flag's value. A message must
// not have the limit 0, so followsPolicy removes the limit from the line, and sets this line's copy of the flag's value
// to 0, which means the policy.
func followsPolicy(limit **int64, flag *int) {
	if *limit != nil && **limit == 0 {
		*limit, *flag = nil, 0
	}
}
