package flags

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
)

// InstantVar adds a flag for a point in time.
func InstantVar(f *pflag.FlagSet, t *time.Time, name, usage string) {
	f.Var(&instant{name, t}, name, usage)
}

type instant struct {
	field string
	t     *time.Time
}

// Set implements pflag.Value.
func (f *instant) Set(text string) (err error) {
	if *f.t, err = time.Parse(time.RFC3339, text); err != nil {
		return fmt.Errorf("must be RFC 3339 with a time zone, like %s", time.Now().Add(time.Hour).Format(time.RFC3339))
	}
	return admin.CheckTime(f.field, *f.t)
}

// Type implements pflag.Value.
func (f *instant) Type() string { return "time" }

// String implements pflag.Value.
func (f *instant) String() string {
	if f.t.IsZero() {
		return ""
	}
	return f.t.Format(time.RFC3339)
}

// Headers is a repeatable flag for name=value.
type Headers map[string]string

// Set implements pflag.Value.
func (f *Headers) Set(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return errors.New("must be name=value")
	}
	if _, twice := (*f)[name]; twice {
		return fmt.Errorf("header %q is given twice", name)
	}
	if *f == nil {
		*f = Headers{}
	}
	(*f)[name] = value
	return admin.CheckHeaders(*f)
}

// Type implements pflag.Value.
func (f *Headers) Type() string { return "name=value" }

// String implements pflag.Value.
func (f *Headers) String() string { return "" }

// Durability is a flag for the durability that a write waits for.
type Durability struct{ D bridge.Durability }

// Set implements pflag.Value.
func (f *Durability) Set(text string) (err error) {
	f.D, err = bridge.ParseDurability(text)
	return err
}

// Type implements pflag.Value.
func (f *Durability) Type() string { return "level" }

// String implements pflag.Value.
func (f *Durability) String() string { return f.D.String() }
