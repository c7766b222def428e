package integration

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

// serverRow matches a row of the table of servers: product, version, whether it has WAITAOF, the code of the error that
// a blocked read gets when its stream is deleted, and whether XINFO CONSUMERS has the field inactive.
var serverRow = regexp.MustCompile("(?m)^\\| (Redis|Valkey) (\\d+\\.\\d+) \\| (yes|no) \\| `([A-Z]+)` \\| (yes|no) \\|$")

// The table of servers in docs/operations/deploy.md says how the servers differ. Each row matches what its server does,
// and there is a row for every server of redistest.Images.
func TestServersDifferAsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/operations/deploy.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string][]string{}
	for _, row := range serverRow.FindAllStringSubmatch(string(text), -1) {
		documented[strings.ToLower(row[1])+":"+row[2]] = row[3:]
	}
	for _, image := range redistest.Images() {
		if documented[image[strings.LastIndex(image, "/")+1:]] == nil {
			t.Errorf("%s is tested, and has no row", image)
		}
	}
	if len(documented) != len(redistest.Images()) {
		t.Errorf("%d rows for %d servers", len(documented), len(redistest.Images()))
	}
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		product := map[bool]string{false: "redis", true: "valkey"}[server.Valkey()]
		version := strings.Join(strings.Split(server.Version(), ".")[:2], ".")
		row := documented[product+":"+version]
		if row == nil {
			t.Logf("%s has no row", server.Name()) // somebody may run the tests with another server
			return
		}
		c := server.Client(t)
		stream := server.Prefix(t) + ":stream"
		do := func(words ...string) rueidis.RedisResult {
			return c.Do(context.Background(), c.B().Arbitrary(words...).Build())
		}
		hasWaitAOF := "yes"
		if err := do("WAITAOF", "0", "0", "1").Error(); err != nil && strings.Contains(err.Error(), "unknown command") {
			hasWaitAOF = "no"
		}
		do("XGROUP", "CREATE", stream, "g", "0", "MKSTREAM")
		do("XGROUP", "CREATECONSUMER", stream, "g", "c")
		consumers, err := do("XINFO", "CONSUMERS", stream, "g").ToArray()
		if err != nil || len(consumers) != 1 {
			t.Fatalf("consumers: %v, %v", consumers, err)
		}
		fields, err := consumers[0].AsMap()
		if err != nil {
			t.Fatal(err)
		}
		hasInactive := "no"
		if _, ok := fields["inactive"]; ok {
			hasInactive = "yes"
		}
		name := strings.ReplaceAll(stream, ":", "-")
		reader := server.Client(t, func(o *rueidis.ClientOption) { o.AlwaysPipelining, o.ClientName = true, name })
		answer := make(chan error, 1)
		go func() {
			read := reader.B().Arbitrary("XREADGROUP", "GROUP", "g", "c", "BLOCK", "5000",
				"STREAMS").Keys(stream).Args(">").Blocking()
			answer <- reader.Do(context.Background(), read).Error()
		}()
		blocked := regexp.MustCompile(`name=` + regexp.QuoteMeta(name) + ` .*flags=[^ ]*b`)
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			list, err := do("CLIENT", "LIST").ToString()
			return err == nil && blocked.MatchString(list), "the reader does not block"
		})
		do("DEL", stream)
		code, _, _ := strings.Cut((<-answer).Error(), " ")
		got := []string{hasWaitAOF, code, hasInactive}
		if strings.Join(got, " ") != strings.Join(row, " ") {
			t.Errorf("%s: %q, documented as %q", server.Name(), got, row)
		}
	})
}
