package scheduler

import (
	"hash/fnv"

	"github.com/duestream/duestream/lua"
)

// capable returns the live schedulers that have at least a protocol level. If the owner among all schedulers is
// capable, it is also the owner among the capable ones.
func capable(live []string, level int) (able []string) {
	for _, bridge := range live {
		if i, _ := lua.ParseIdentity(bridge); i.Level >= level {
			able = append(able, bridge)
		}
	}
	return able
}

// owner returns the live scheduler that owns a queue: the one with the highest weight for it. When a scheduler comes or
// goes, only the queues that it gets or had change their owner. Every scheduler must compute the same owner, so the
// hash is part of the protocol.
func owner(live []string, queue string) string {
	best, most := "", uint64(0)
	for _, bridge := range live {
		if w := weight(bridge, queue); best == "" || w > most || w == most && bridge > best {
			best, most = bridge, w
		}
	}
	return best
}

// rank returns how many schedulers precede a bridge in the succession of a queue's owner: 0 for the owner.
func rank(live []string, queue, bridge string) (n int) {
	for _, other := range live {
		if owner([]string{bridge, other}, queue) != bridge {
			n++
		}
	}
	return n
}

// weight is FNV-1a of both names, with the finalizer of splitmix64: FNV alone leaves the high bits of similar names
// alike.
func weight(bridge, queue string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(bridge))
	h.Write([]byte{0})
	h.Write([]byte(queue))
	x := h.Sum64()
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
