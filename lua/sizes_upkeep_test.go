package lua

import (
	"fmt"
	"strings"
	"time"
)

func (o *ordeal) heartbeat() {
	var commands [][]string
	for i := range o.number("bridges", 0, 300) {
		commands = append(commands, []string{"ZADD", o.b.g.Bridges, ms(o.b.now()), fmt.Sprint("bridge", i)})
	}
	o.b.build(commands...)
	_, _, err := Heartbeat(o.b.ctx, o.scale, o.b.g, "own", time.Minute)
	o.must(err)
}

func (o *ordeal) register() {
	size := o.size("counts")
	o.b.build([]string{"HSET", o.b.g.Queues, "q", "1,4" + pad(size)})
	o.seen(0, size+10)
	_, err := Register(o.b.ctx, o.scale, o.b.g, []string{"q", "other"})
	o.must(err)
}

func (o *ordeal) configure() {
	o.b.build([]string{"HSET", o.b.k.Policy, "max_attempts", pad(o.size("value"))})
	o.must(Configure(o.b.ctx, o.scale, o.b.k.Policy, o.b.k.Wake, fields("max_attempts", "3", "held", "")))
}

func (o *ordeal) setPolicy() {
	o.b.build([]string{"HSET", o.b.k.Policy, "max_attempts", pad(o.size("value"))})
	k := o.b.k.As(pad(o.size("author")))
	_, err := SetPolicy(o.b.ctx, o.scale, k, nil, fields("max_attempts", "3", "held", ""))
	o.must(err)
}

func (o *ordeal) signal() {
	o.b.build([]string{"XADD", o.b.k.Wake, "5-1", "queues", pad(o.size("token"))})
	o.must(signal(o.b.ctx, o.scale, o.b.k.Wake, "settings"))
}

func (o *ordeal) take() {
	o.b.build([]string{"SET", o.b.g.Bucket("d"), pad(o.size("bucket"))})
	_, err := Take(o.b.ctx, o.scale, o.b.g.Bucket("d"), time.Second, 5, 1)
	o.must(err)
}

func (o *ordeal) claim() {
	key := o.b.k.Once("g", "m")
	o.b.build([]string{"SET", key, pad(o.size("record"))})
	_, _, err := Claim(o.b.ctx, o.scale, key, "a", time.Minute, time.Hour)
	o.must(err)
}

func (o *ordeal) ensureGroup() {
	o.held(2)
	_, err := EnsureGroup(o.b.ctx, o.scale, o.b.k, "new")
	o.must(err)
}

func (o *ordeal) dropGroups() {
	if o.flip("held") {
		o.held(2)
	}
	o.b.groups("g1", "g2")
	_, err := DropGroups(o.b.ctx, o.scale, o.b.k, []string{"g", "g1", "g2", "nobody"})
	o.must(err)
}

func (o *ordeal) deleteEmpty() {
	if o.flip("held") {
		o.held(2)
	}
	o.b.build([]string{"HSET", o.b.k.Payload, "orphan", pad(o.size("orphan"))})
	_, err := DeleteEmpty(o.b.ctx, o.scale, o.b.k, true)
	o.must(err)
}

func (o *ordeal) setTarget() {
	before := strings.Repeat("x", o.size("target"))
	o.b.build([]string{"HSET", o.b.k.Push, "g", before})
	o.seen(0, len(before)+10)
	_, err := SetTarget(o.b.ctx, o.scale, o.b.k, "g", before, "{}", 9)
	o.must(err)
}

func (o *ordeal) dropConsumer() {
	o.held(2)
	o.b.do("XGROUP", "CREATECONSUMER", o.b.k.Stream, "g", "c2")
	_, err := DropConsumers(o.b.ctx, o.scale, o.b.k, "g", []string{"c1", "c2", "nobody"})
	o.must(err)
}
