package asynq

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// message is a task as asynq stores it: the fields of TaskMessage in asynq's internal/proto/asynq.proto.
type message struct {
	kind, id, queue, lastError string
	payload                    []byte
	headers                    map[string]string

	retries, retried    int64 // at most so many retries; retries so far
	lastFailed          int64 // Unix time in seconds; 0 = it never failed
	timeout, retention  int64 // seconds; 0 = none
	deadline            int64 // Unix time in seconds; 0 = none
	uniqueKey, groupKey string
}

// Numbers of the fields of TaskMessage.
const (
	fieldType       = 1
	fieldPayload    = 2
	fieldID         = 3
	fieldQueue      = 4
	fieldRetry      = 5
	fieldRetried    = 6
	fieldError      = 7
	fieldTimeout    = 8
	fieldDeadline   = 9
	fieldUniqueKey  = 10
	fieldLastFailed = 11
	fieldRetention  = 12
	fieldGroupKey   = 14
	fieldHeaders    = 15
)

// Numbers of the fields of an entry of a protobuf map.
const (
	fieldMapKey   = 1
	fieldMapValue = 2
)

var errMalformed = errors.New("is not as asynq stores it: no protobuf message")

// decode reads a task. It skips fields that it does not know.
func decode(data []byte) (message, error) {
	m := message{payload: []byte{}}
	texts := map[protowire.Number]*string{fieldType: &m.kind, fieldID: &m.id, fieldQueue: &m.queue,
		fieldError: &m.lastError, fieldUniqueKey: &m.uniqueKey, fieldGroupKey: &m.groupKey}
	numbers := map[protowire.Number]*int64{fieldRetry: &m.retries, fieldRetried: &m.retried,
		fieldTimeout: &m.timeout, fieldDeadline: &m.deadline, fieldLastFailed: &m.lastFailed, fieldRetention: &m.retention}
	err := eachField(data, func(number protowire.Number, bytes []byte, value uint64, isBytes bool) error {
		if text := texts[number]; text != nil && isBytes {
			*text = string(bytes)
		}
		if n := numbers[number]; n != nil && !isBytes {
			*n = int64(value)
		}
		switch {
		case number == fieldPayload && isBytes:
			m.payload = append([]byte{}, bytes...)
		case number == fieldHeaders && isBytes:
			return m.addHeader(bytes)
		}
		return nil
	})
	return m, err
}

// addHeader reads an entry of the map of headers.
func (m *message) addHeader(entry []byte) error {
	var name, value string
	err := eachField(entry, func(number protowire.Number, bytes []byte, _ uint64, isBytes bool) error {
		switch {
		case number == fieldMapKey && isBytes:
			name = string(bytes)
		case number == fieldMapValue && isBytes:
			value = string(bytes)
		}
		return nil
	})
	if m.headers == nil {
		m.headers = map[string]string{}
	}
	m.headers[name] = value
	return err
}

// eachField calls visit for each field of an encoded message: with its bytes, or with its number.
func eachField(data []byte, visit func(n protowire.Number, bytes []byte, value uint64, isBytes bool) error) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return errMalformed
		}
		data = data[n:]
		var bytes []byte
		var value uint64
		switch kind {
		case protowire.BytesType:
			bytes, n = protowire.ConsumeBytes(data)
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(data)
		default:
			n = protowire.ConsumeFieldValue(number, kind, data)
		}
		if n < 0 {
			return errMalformed
		}
		data = data[n:]
		if kind == protowire.BytesType || kind == protowire.VarintType {
			if err := visit(number, bytes, value, kind == protowire.BytesType); err != nil {
				return err
			}
		}
	}
	return nil
}
