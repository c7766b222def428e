package doctor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// The doctor and the drain script judge a message by two programs, one in Go and one in Lua. The doctor must call
// exactly those messages malformed that the script dead-letters. The test tries each member with each meta.
func TestMalformedIsWhatTheDrainBuries(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	c := server.Client(t)
	k := lua.NewKeys(server.Prefix(t), "q")
	c.Do(t.Context(), c.B().XgroupCreate().Key(k.Stream).Group("g").Id("0").Mkstream().Build())
	many := func(n int) string {
		fields := make([]string, n)
		for i := range fields {
			fields[i] = fmt.Sprintf(`"f%d":"x"`, i)
		}
		return "{" + strings.Join(fields, ",") + "}"
	}
	sep := lua.Separator
	const noMeta = "-"
	metas := []string{
		noMeta, "", " ", "{}", " {} ", "{}x", "{", "[]", `["a"]`, "null", "1", `"a"`, "true", "\ufeff{}",
		`{"a":"b"}`, `{"a":1}`, `{"a":null}`, `{"a":true}`, `{"a":{}}`, `{"a":[]}`, `{"a":"b","a":1}`, `{"a":1,"a":"b"}`,
		`{"a":"b",}`, `{a:"b"}`, `{'a':'b'}`,
		"{\"a\":\"b\nc\"}", "{\"a\":\"b\tc\"}", "{\"a\":\"\x01\"}", `{"a":"\u0000"}`, `{"a":"\ud83d\ude00"}`,
		`{"a":"\ud83d"}`, `{"a":"\udc00"}`, `{"a":"\ud83dx"}`, `{"a":"\ud83d\u0041"}`, `{"a":"\ud8"}`,
		`{"a":"\u00e4"}`, `{"a":"\\"}`, `{"a":"\\ud83d"}`, `{"a":"\`, `{"a\"":"b"}`,
		"{\x01}", "{\n\"a\n\":\"b\"}", `{"a":"\q"}`, `{"a":"\/"}`, "{\"a\":\"\xff\"}", "{\"a\":\"b\"}\x00",
		"{\"a\":\"b\"}\x00x", `{"":"b"}`, `{"payload":"x"}`, `{"due_ms":"1"}`, `{"id":"other"}`, `{"id":""}`, `{"id":"a` + "\\u001f" + `b"}`,
		`{"id":5}`, `{"a":NaN}`, `{"a":0x1}`,
		`{"attempt":"2"}`, `{"attempt":"1"}`, `{"attempt":"0"}`, `{"attempt":""}`, `{"attempt":"02"}`, `{"attempt":"1e3"}`,
		`{"attempt":"-1"}`, `{"max_attempts":"5"}`, `{"max_attempts":"x"}`,
		`{"max_attempts":"1234567890123456"}`,
		`{"expires_ms":"99999999999999"}`, `{"expires_ms":"soon"}`, `{"for":"g","id":"x","attempt":"2","error":"e"}`,
		"/* c */{}", "{}//", "{}\n\n", "\n\t{\"a\" : \"b\"}\r\n", "{}\x0b",
		many(995), many(996), many(997), many(1000),
		`{"a":"` + strings.Repeat("x", 512<<10) + `"}`,
		`{"id":"ä","h:ü":"ö"}`, `{"a":` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `}`,
	}
	for _, member := range []string{"plain", "", "ä", "\xff", "id" + sep + "g" + sep + "1-1", sep} {
		for _, meta := range metas {
			var own *string // nil = the message has no meta
			if meta != noMeta {
				own = &meta
				c.Do(t.Context(), c.B().Hset().Key(k.Meta).FieldValue().FieldValue(member, meta).Build())
			}
			c.Do(t.Context(), c.B().Zadd().Key(k.Due).ScoreMember().ScoreMember(1, member).Build())
			drained, err := lua.Drain(t.Context(), c, k, 10, 1<<20)
			if err != nil || drained.Moved+drained.Dead != 1 {
				t.Fatalf("%q %.60q: %+v %v", member, meta, drained, err)
			}
			if wrong := malformed(member, own); (wrong != "") != (drained.Dead == 1) {
				letters, _ := c.Do(t.Context(), c.B().Xrevrange().Key(k.Dead).End("+").Start("-").Count(1).Build()).AsXRange()
				says := ""
				if drained.Dead == 1 && len(letters) > 0 {
					says = letters[0].FieldValues[lua.FieldError]
				}
				t.Errorf("member %q, meta %.60q: %q, and the drain says %q", member, meta, wrong, says)
			}
		}
	}
}
