package acl

import (
	"context"
	"strings"

	"github.com/redis/rueidis"
)

// Denial is something that a server denied to a user, from a row of ACL LOG. What is the command, key or channel.
type Denial struct{ User, What, Reason, Context string }

// Denials reads the newest 128 denials of a server. It leaves out the commands with which client libraries introduce
// themselves, because they are optional.
func Denials(ctx context.Context, c rueidis.Client) (denials []Denial, err error) {
	rows, err := c.Do(ctx, c.B().Arbitrary("ACL", "LOG", "128").Build()).ToArray()
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		entry, err := row.AsMap()
		if err != nil {
			return nil, err
		}
		text := func(field string) string {
			value := entry[field]
			s, _ := value.ToString()
			return s
		}
		if what := text("object"); !strings.HasPrefix(what, "client|") {
			denials = append(denials, Denial{text("username"), what, text("reason"), text("context")})
		}
	}
	return denials, nil
}
