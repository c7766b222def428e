package ndjson

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/duestream/duestream/lua"
)

// checkObject refuses what the decoder of the standard library accepts silently: null in place of an object or a value,
// a key that is given twice (the last one would win), a key in capitals, and half a surrogate pair (it would become
// U+FFFD). It does not look into a payload that is JSON. keysAreFields: the keys are names of our fields, which have no
// capitals; else they are names of headers, which may have any characters.
func checkObject(object []byte, keysAreFields bool) error {
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
		if keysAreFields && strings.ContainsFunc(key, func(r rune) bool {
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
		if lua.HasHalfCharacter(value) {
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
	var encoded base64.CorruptInputError
	switch {
	case errors.As(err, &kind) && kind.Field == "":
		return fmt.Errorf("is a JSON %s: must be an object", kind.Value)
	case errors.As(err, &kind) && kind.Field == "headers":
		return fmt.Errorf("headers: here is a JSON %s: must be an object of strings", kind.Value)
	case errors.As(err, &kind):
		return fmt.Errorf("%s: is a JSON %s: must be %s", kind.Field, kind.Value, jsonName(kind.Type.Kind().String()))
	case errors.As(err, &syntax), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("is not JSON: %w", err)
	case errors.As(err, &encoded):
		return fmt.Errorf("payload_base64: is not base64 (%w)", err) // the only field of type Base64
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// Base64 is bytes whose JSON is a string of base64. Unlike []byte it does not take an array of numbers.
type Base64 []byte

// UnmarshalJSON takes a string of base64.
func (b *Base64) UnmarshalJSON(text []byte) error {
	var encoded string
	if err := json.Unmarshal(text, &encoded); err != nil {
		return err
	}
	decoded, err := base64.StdEncoding.DecodeString(encoded)
	*b = decoded
	return err
}

func jsonName(goKind string) string {
	if goKind == "int" || goKind == "int64" {
		return "a whole number"
	}
	return "a " + goKind
}
