package policy

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// Each field of Policy and of Update has one row in the table of settings, and each row reads and writes a field of its
// own. Each value can be read back from its JSON and from the hash in Redis.
func TestEverySettingHasARowAndAField(t *testing.T) {
	t.Parallel()
	redistest.Want(t, "fields of Policy", reflect.TypeFor[Policy]().NumField(), len(settings))
	redistest.Want(t, "fields of Update beside Clear", reflect.TypeFor[Update]().NumField()-1, len(settings))
	var full Policy // gets a value of every setting, row by row
	for _, s := range settings {
		if s.Meaning == "" || s.Limits() == "" || s.Word == "" {
			t.Errorf("%s is described as %+v", s.Name, s)
		}
		built, err := s.parse(s.Default())
		if err != nil || s.Get(Default()) != built {
			t.Errorf("%s: the built-in value %q is %+v, %v", s.Name, s.Default(), built, err)
		}
		other := Value{Number: s.High} // differs from the value that full has
		switch s.Kind {
		case Delays:
			other = Value{Text: "1,2"}
		case Rate:
			other = Value{Text: "5/m"}
		case Word:
			other = Value{Text: s.Words[1]}
		}
		before := full
		s.Set(&full, other)
		if full == before || s.Get(full) != other {
			t.Errorf("%s: another row has set its field of Policy, or %+v is not %+v", s.Name, s.Get(full), other)
		}
		var u Update
		s.Put(&u, other)
		for _, one := range settings {
			if value, given := one.change(&u); given != (one.Name == s.Name) || given && value != other {
				t.Errorf("%s is put, and %s is %+v", s.Name, one.Name, value)
			}
		}
		for _, v := range []Value{built, other} {
			text, err := json.Marshal(s.JSON(v))
			if back, err2 := s.ParseJSON(text); err != nil || err2 != nil || back != v {
				t.Errorf("%s: %+v is %s in JSON, and that %+v: %v, %v", s.Name, v, text, back, err, err2)
			}
			if back, err := s.parse(s.stored(v)); err != nil || back != v {
				t.Errorf("%s: %+v is %s in the hash, and that %+v: %v", s.Name, v, s.stored(v), back, err)
			}
		}
	}
	redistest.Want(t, "validation of a policy with every setting", fmt.Sprint(full.Validate()), "<nil>")
}

// docs/reference/protocol.md, section 11, has a row for each setting, with the built-in value.
func TestEverySettingIsInTheProtocol(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range Settings() {
		if !regexp.MustCompile("(?m)^\\| `" + s.Name + "` \\| `?" + s.Default() + "`? \\| ").Match(text) {
			t.Errorf("%s has no row with the built-in value %s", s.Name, s.Default())
		}
	}
}
