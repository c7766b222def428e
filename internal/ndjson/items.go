package ndjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

var errNoArray = errors.New("is not a JSON array")

// Items returns the first values of a JSON array, at most most of them, because a value of a few bytes costs hundreds
// of bytes of memory. more reports whether the array has further values, which Items does not read.
func Items(text []byte, most int) (items []json.RawMessage, more bool, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if begin, _ := d.Token(); begin != json.Delim('[') {
		return nil, false, errNoArray
	}
	for d.More() {
		if len(items) == most {
			return items, true, nil
		}
		var one json.RawMessage
		if d.Decode(&one) != nil {
			return nil, false, errNoArray
		}
		items = append(items, one)
	}
	if _, err := d.Token(); err != nil { // the end of the array
		return nil, false, errNoArray
	}
	if _, err := d.Token(); err != io.EOF { //nolint:errorlint // a Decoder does not wrap it
		return nil, false, errNoArray
	}
	return items, false, nil
}
