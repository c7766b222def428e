package doctor

import (
	"fmt"
	"strings"
	"testing"
)

// The checks of a server read INFO texts that are hard to get from a live server: old versions, full memory, failed
// saves and broken replication. Each case changes or adds fields of the INFO of a sound server.
func TestJudgeReadsInfo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		info, settings map[string]string
		want           string // codes of the findings
	}{
		{nil, nil, ""},
		{map[string]string{"redis_version": "6.2.14"}, nil, "D101"},
		{map[string]string{"redis_version": "8.0.2"}, nil, ""},
		{map[string]string{"redis_version": "7.2.4", "valkey_version": "7.2.5"}, nil, ""},
		{map[string]string{"redis_version": "7.0.4", "valkey_version": "7.0.5"}, nil, "D101"},
		{map[string]string{"used_memory": "999"}, nil, "D104"},
		{map[string]string{"used_memory": "1000"}, nil, "D115"},
		{map[string]string{"used_memory": "1000", "maxmemory_policy": "allkeys-lru"}, nil, "D102 D104"},
		{map[string]string{"used_memory": "3000", "mem_not_counted_for_evict": "2500"}, nil, ""},
		{map[string]string{"used_memory": "3000", "mem_not_counted_for_evict": "2050"}, nil, "D104"},
		{map[string]string{"used_memory": "3000", "mem_not_counted_for_evict": "2000"}, nil, "D115"},
		{map[string]string{"rdb_last_bgsave_status": "err"}, nil, "D107"},
		{map[string]string{"aof_last_write_status": "err"}, nil, "D107"},
		{map[string]string{"slave0": "ip=10.0.0.1,port=6379,state=online,offset=1,lag=1"}, nil, ""},
		{map[string]string{"slave0": "ip=10.0.0.1,port=6379,state=wait_bgsave,offset=0,lag=0"}, nil, "D108"},
		{map[string]string{"slave0": "ip=a,port=1,state=online,lag=0", "slave1": "ip=b,port=1,state=online,offset=1,lag=11"},
			nil, "D108"},
		{map[string]string{"min_slaves_good_slaves": "0"}, nil, "D109"},
		{map[string]string{"min_slaves_good_slaves": "1"}, map[string]string{"min-replicas-to-write": "2"}, "D109"},
		{map[string]string{"min_slaves_good_slaves": "2"}, map[string]string{"min-replicas-to-write": "2"}, "D110"},
	} {
		info := map[string]string{"redis_version": "7.0.15", "maxmemory": "1000", "used_memory": "10", "aof_enabled": "1",
			"maxmemory_policy": "noeviction", "role": "master"}
		for name, value := range c.info {
			info[name] = value
		}
		var got []string
		judge(&Server{}, info, c.settings, func(c *Check, _ int64, found string, args ...any) {
			got = append(got, c.Code)
			if text := fmt.Sprintf(found, args...); strings.Contains(text, "%!") { // a verb without its argument
				t.Error(text)
			}
		})
		if strings.Join(got, " ") != c.want {
			t.Errorf("%v %v: %v, want %s", c.info, c.settings, got, c.want)
		}
	}
}
