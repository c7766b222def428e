package sizes

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// This file reads partitions at the depth glance.

// glance reads partitions, lua.MaxGlance of them in one round trip. On a cluster each partition takes a command of its
// own, and the commands are sent together. If a partition cannot be read, its err says why.
func (r *reader) glance(ctx context.Context, parts []*partition) {
	for batch := range slices.Chunk(parts, lua.MaxGlance) {
		r.askGlances(ctx, batch)
		for _, p := range batch {
			if p.err == nil {
				p.err = r.takeGlance(ctx, p)
			}
			if p.err == nil {
				p.err = r.finish(ctx, p)
			}
		}
	}
}

// askGlances fills in the glanced figures of partitions, or their errors.
func (r *reader) askGlances(ctx context.Context, parts []*partition) {
	at := make([]lua.GlanceAt, len(parts))
	for i, p := range parts {
		at[i] = lua.GlanceAt{Keys: p.keys, Letters: -1}
		if r.newestBytes > 0 {
			at[i].Newest, at[i].Letters = r.spendNewestBytes(p), r.cacheOf(p).newestDead.count
			p.askedLetter = true
		}
	}
	if r.c.Mode() != rueidis.ClientModeCluster {
		r.askGlance(ctx, parts, at)
		return
	}
	var calls sync.WaitGroup
	for i := range parts { // together, because a server that hangs must not delay the other partitions
		calls.Go(func() { r.askGlance(ctx, parts[i:i+1], at[i:i+1]) })
	}
	calls.Wait()
}

// askGlance looks at partitions that are in one slot, or on one server.
func (r *reader) askGlance(ctx context.Context, parts []*partition, at []lua.GlanceAt) {
	for len(parts) > 0 {
		call, cancel := context.WithTimeout(ctx, glanceTimeout)
		glances, err := lua.Glance(call, r.c, at, limitsOf[glance].groups, FreshLetter)
		cancel()
		if err != nil {
			for _, p := range parts {
				p.err = err
			}
			return
		}
		for i, one := range glances {
			parts[i].glanced, parts[i].err = one, one.Err
		}
		parts, at = parts[len(glances):], at[len(glances):]
	}
}

// takeGlance takes over the glanced figures of a partition.
func (r *reader) takeGlance(ctx context.Context, p *partition) (err error) {
	g := p.glanced
	r.now = g.At
	p.Scheduled, p.Overdue, p.metas, p.Entries, p.Dead = g.Scheduled, g.Overdue, g.Metas, g.Entries, g.Dead
	if score, err := strconv.ParseFloat(g.First, 64); err == nil {
		p.first = []rueidis.ZScore{{Score: score}}
	}
	if g.Settings.IsNil() {
		err = view.Ask(ctx, r.c, r.settings(p.keys.Policy, &p.settings))
	} else {
		p.settings, err = g.Settings.AsStrMap()
	}
	if err != nil {
		return err
	}
	if p.infos, err = view.GroupsIn(g.Groups); err != nil {
		return err
	}
	slices.SortFunc(p.infos, func(a, b view.GroupInfo) int { return strings.Compare(a.Name, b.Name) })
	p.details = make([]groupReplies, min(limitsOf[glance].groups, len(p.infos)))
	for i := range p.details {
		if err := p.takeGroup(i); err != nil {
			return err
		}
	}
	r.readDefaults(ctx, p)
	return nil
}

// takeGroup takes over the glanced details of a group.
func (p *partition) takeGroup(i int) (err error) {
	info, replies := p.infos[i], &p.details[i]
	at := slices.IndexFunc(p.glanced.Details, func(g lua.GlancedGroup) bool { return g.Name == info.Name })
	replies.unread = info.Consumers > 0 && (at < 0 || p.glanced.Details[at].Consumers.IsNil())
	if at < 0 {
		return nil
	}
	one := p.glanced.Details[at]
	if replies.oldest, err = view.PendingIn(one.Oldest); err != nil {
		return err
	}
	if info.Pending > 0 {
		p.holders, p.notes = append(p.holders, info.Name), append(p.notes, one.Notes)
	}
	replies.consumers, err = view.ConsumersIn(one.Consumers)
	return err
}

// readDefaults reads the policy's default settings, once for each look, if a group of the partition holds entries: they
// complete the settings of such groups. If they cannot be read, those of an earlier look count.
func (r *reader) readDefaults(ctx context.Context, p *partition) {
	if len(p.holders) == 0 || r.defaultsAsked {
		return
	}
	r.defaultsAsked = true
	call, cancel := context.WithTimeout(ctx, glanceTimeout)
	defer cancel()
	_ = view.Ask(call, r.c, r.settings(lua.NewGlobals(r.prefix).Defaults, &r.defaults))
}
