package scheduler

import (
	"hash/fnv"

	"github.com/duestream/duestream/lua"
)

// withLevel returns the live schedulers that have at least a protocol level. If one of them is the owner among all
// schedulers, it is also the owner among those with the level.
func withLevel(live []string, level int) (bridges []string) {
	for _, bridge := range live {
		if i, _ := lua.ParseIdentity(bridge); i.Level >= level {
			bridges = append(bridges, bridge)
		}
	}
	return bridges
}

// owner returns the live scheduler that owns a queue: the scheduler with the greatest weight for the queue. When a
// scheduler starts or ends, only the queues that it gets or had change their owner. Every scheduler must compute the
// same owner, so the hash is part of the protocol.
func owner(live []string, queue string) string {
	best, greatest := "", uint64(0)
	for _, bridge := range live {
		w := weight(bridge, queue)
		wins := w > greatest || w == greatest && bridge > best
		if best == "" || wins {
			best, greatest = bridge, w
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

// weight returns a hash of both names: FNV-1a, and then the finalizer of splitmix64, because FNV alone gives similar
// names nearly the same high bits.
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
