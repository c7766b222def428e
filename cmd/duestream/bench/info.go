package bench

import (
	"context"
	"strconv"
	"strings"

	"github.com/duestream/duestream/lua"
	"github.com/redis/rueidis"
)

// info returns the numbers of one section of INFO of the server that holds the queue; none when it does not tell.
func (r *rig) info(ctx context.Context, section string) (map[string]float64, error) {
	return numbers(r.c.Do(ctx, r.c.B().Info().Section(section).Build().SetSlot(r.keys.Due)))
}

func numbers(reply rueidis.RedisResult) (map[string]float64, error) {
	text, err := reply.ToString()
	if _, refused := rueidis.IsRedisErr(err); refused {
		return nil, nil
	}
	if err != nil {
		return nil, lua.Classify("INFO", err)
	}
	values := map[string]float64{}
	for line := range strings.SplitSeq(text, "\r\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			if n, err := strconv.ParseFloat(value, 64); err == nil {
				values[name] = n
			}
		}
	}
	return values, nil
}
