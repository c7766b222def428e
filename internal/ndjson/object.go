package ndjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// checkObject refuses what the decoder of the standard library accepts silently: null in place of an object or a value,
// a key that is given twice (the last one would win), a key in capitals, and half a surrogate pair (it would become
// U+FFFD). It does not look into a payload that is JSON. fields: the keys are fields of ours, not names of headers.
func checkObject(object []byte, fields bool) error {
	dec := json.NewDecoder(bytes.NewReader(object))
	open, err := dec.Token()
	if err != nil {
		return err
	}
	if open != json.Delim('{') {
		return errors.New("is not a JSON object")
	}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string)
		if fields && strings.ContainsFunc(key, func(r rune) bool {
			return r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9')
		}) {
			return fmt.Errorf("unknown field %q", key)
		}
		if seen[key] {
			return fmt.Errorf("%s: is given twice", key)
		}
		seen[key] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return err
		}
		if err := checkValue(key, value); err != nil {
			return err
		}
	}
	return nil
}

func checkValue(key string, value json.RawMessage) error {
	switch value[0] {
	case 'n':
		if key != "payload" {
			return fmt.Errorf("%s: is null: leave it out", key)
		}
	case '"':
		if halfCharacter(value) {
			return fmt.Errorf(`%s: holds half a character (\ud800 to \udfff without its other half)`, key)
		}
	case '{':
		if key != "payload" {
			if err := checkObject(value, false); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
		}
	}
	return nil
}

// halfCharacter reports whether a JSON string holds one half of a surrogate pair without the other.
func halfCharacter(text []byte) bool {
	if !bytes.Contains(text, []byte(`\u`)) {
		return false
	}
	high := false // the unit before was a first half
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			if high {
				return true
			}
			continue
		}
		if i++; i >= len(text) || text[i] != 'u' || i+4 >= len(text) {
			if high {
				return true
			}
			continue
		}
		unit := bytes.ToLower(text[i+1 : i+5])
		low := unit[0] == 'd' && unit[1] >= 'c'
		if high != low {
			return true
		}
		high = unit[0] == 'd' && unit[1] >= '8' && unit[1] < 'c'
		i += 4
	}
	return high
}

// Decode decodes one JSON object. It refuses unknown fields, and anything after the object. Its errors speak of JSON,
// not of Go.
func Decode(line []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	err := dec.Decode(into)
	if err == nil {
		if err := checkObject(line, true); err != nil {
			return err
		}
		if _, end := dec.Token(); end != io.EOF {
			return errors.New("there is more behind the JSON object")
		}
		return nil
	}
	var kind *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &kind) && kind.Field == "":
		return fmt.Errorf("is a JSON %s: must be an object", kind.Value)
	case errors.As(err, &kind) && kind.Field == "headers":
		return fmt.Errorf("headers: here is a JSON %s: must be an object of strings", kind.Value)
	case errors.As(err, &kind):
		return fmt.Errorf("%s: is a JSON %s: must be %s", kind.Field, kind.Value, jsonName(kind.Type.Kind().String()))
	case errors.As(err, &syntax), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("is not JSON: %w", err)
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

func jsonName(goKind string) string {
	if goKind == "int" || goKind == "int64" {
		return "a whole number"
	}
	return "a " + goKind
}
