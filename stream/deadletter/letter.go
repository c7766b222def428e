package deadletter

import (
	"errors"
	"fmt"
	"strings"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// LetterName returns the public name of a dead letter: its ID in the stream, prefixed with its partition unless the
// partition is 0.
func LetterName(partition int, entry string) string {
	if partition == 0 {
		return entry
	}
	return fmt.Sprintf("%d/%s", partition, entry)
}

// SplitLetter is the reverse of LetterName.
func SplitLetter(name string) (partition int, entry string, err error) {
	entry = name
	if number, rest, found := strings.Cut(name, "/"); found {
		var ok bool
		if _, partition, ok = lua.SplitPartition("q/" + number); !ok { // "q": any queue, to parse the number
			return 0, "", lua.Invalid("letter", name,
				"must be <milliseconds>-<sequence>, or <partition>/<milliseconds>-<sequence>")
		}
		entry = rest
	}
	_, err = view.ParseEntryID(entry)
	return partition, entry, err
}

// splitLetters returns the entry IDs of letters by partition.
func splitLetters(names []string) (byPartition map[int][]string, err error) {
	byPartition = map[int][]string{}
	for _, name := range names {
		partition, entry, invalid := SplitLetter(name)
		byPartition[partition] = append(byPartition[partition], entry)
		err = errors.Join(err, invalid)
	}
	return byPartition, err
}
