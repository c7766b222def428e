package lua

import "fmt"

// bodies fills the hash of payloads with values of any size. One in five fields has a member in the schedule; the
// others are orphans.
func (o *ordeal) bodies() (fields []string) {
	b := o.b
	n := o.number("fields", 1, 600)
	var commands [][]string
	for i, size := range o.sizes("body", n) {
		field := fmt.Sprint("f", i)
		fields = append(fields, field)
		commands = append(commands, []string{"HSET", b.k.Payload, field, pad(size)})
		o.seen(0, len(field)+size)
		if i%5 == 0 {
			commands = append(commands, []string{"ZADD", b.k.Due, "5", field})
		}
	}
	b.build(commands...)
	o.bucket = 5 * o.largest
	return fields
}

func (o *ordeal) orphans() {
	o.bodies()
	sweep := newSweepOrdeal(o)
	for range 4 {
		sweep()
	}
}

// newSweepOrdeal returns a function that sweeps orphans as a keeper does: each call goes on where the last one ended,
// and names the orphans that the last one found, of which every other one may be deleted.
func newSweepOrdeal(o *ordeal) func() {
	cursor := ""
	var watched []Watched
	return func() {
		swept, err := SweepOrphans(o.b.ctx, o.scale, o.b.k.Due, o.b.k.Payload, cursor, 500, watched)
		o.must(err)
		cursor, watched = swept.Cursor, nil
		for i, found := range swept.Found {
			watched = append(watched, Watched{found, i%2 == 0})
		}
	}
}

func (o *ordeal) findOrphans() {
	k, fields := o.b.k, o.bodies()
	for cursor := "0"; ; {
		_, _, next, err := ScanOrphans(o.b.ctx, o.scale, k.Due, k.Payload, cursor, o.number("limit", 1, 500))
		o.must(err)
		if cursor = next; cursor == "0" {
			break
		}
	}
	_, err := StillOrphans(o.b.ctx, o.scale, k.Due, k.Payload, o.some(fields, 500))
	o.must(err)
}

func (o *ordeal) findEntries() {
	o.held(2)
	for s := (EntrySearch{Limit: o.number("limit", 1, 300), More: true}); s.More; {
		next, _, err := FindEntries(o.b.ctx, o.scale, o.b.k.Stream, "m", s)
		o.must(err)
		s = next
	}
}

func (o *ordeal) searchDue() {
	o.schedule(o.number("members", 1, 300))
	f := SearchFilter{States: []string{SearchScheduled, SearchRetrying}}
	if o.flip("text") {
		f.Text = "y"
	}
	scan := ScanDue
	if o.flip("metas") {
		scan = ScanMeta
	} else if f.Text != "" && o.flip("payloads") {
		scan = ScanPayload
	}
	if scan != ScanDue { // one step of the scan returns a bucket of the hash
		o.bucket = 5 * o.largest
	}
	for s := (DueSearch{Limit: o.number("limit", 1, 300), Scan: scan}); !s.Done; {
		next, _, err := SearchDue(o.b.ctx, o.scale, o.b.k, f, s)
		o.must(err)
		s = next
	}
}

func (o *ordeal) searchEntries() {
	o.held(2)
	f := SearchFilter{States: []string{SearchReady, SearchPending}}
	if o.flip("text") {
		f.Text = "y"
	}
	for s := (StreamSearch{Limit: o.number("limit", 1, 300)}); !s.Done; {
		next, _, err := SearchEntries(o.b.ctx, o.scale, o.b.k.Stream, f, s)
		o.must(err)
		s = next
	}
}

func (o *ordeal) findLost() {
	ids := o.held(2)
	_, err := LostEntries(o.b.ctx, o.scale, o.b.k.Stream, "g", o.some(ids, o.number("batch", 1, 300)))
	o.must(err)
}
