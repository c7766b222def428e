package lua

import (
	"context"

	"github.com/redis/rueidis"
)

// This file has the writes that are not scripts; restore_recurrence.go has one more transaction. No other file of the
// project sends a write command of Redis, except XREADGROUP, by which Redis itself delivers (layout.TestOnlyLuaWrites).
//
// A plain write is safe if it is one command, or one transaction that watches the keys that it depends on, and if no
// rule for states depends on it: it removes data that its owner gave up, or writes data that nobody reads yet.

// Leave removes a bridge from the list of live bridges. One command; without it the others wait for its timeout.
func Leave(ctx context.Context, c rueidis.Client, g Globals, bridge string) error {
	err := c.Do(ctx, c.B().Zrem().Key(g.Bridges).Member(bridge).Build()).Error()
	return Classify("ZREM "+g.Bridges, err)
}

// hset returns the HSET that writes one value of each item, by the item's ID. Empty values are left out. The script
// enqueue_fresh follows on the same connection. If the script does not run, nobody reads the values, and a bridge
// deletes them within minutes.
func hset(c rueidis.Client, key string, items []Item, of func(*Item) string) rueidis.Completed {
	cmd := c.B().Hset().Key(key).FieldValue()
	for i := range items {
		if value := of(&items[i]); value != "" {
			cmd = cmd.FieldValue(items[i].ID, value)
		}
	}
	return cmd.Build()
}

// deleteNotes deletes notes of reclaims. One command. It may delete a note that a reclaim writes meanwhile; the next
// reclaim writes that note again.
func deleteNotes(ctx context.Context, c rueidis.Client, k Keys, fields []string) error {
	return Classify("HDEL", c.Do(ctx, c.B().Hdel().Key(k.Calm).Field(fields...).Build()).Error())
}

// ForgetProgress deletes the progress of deliveries that a group has settled. One command. If it is not sent, a bridge
// deletes it.
func ForgetProgress(ctx context.Context, c rueidis.Client, k Keys, group string, entries []string) error {
	fields := make([]string, len(entries))
	for i, entry := range entries {
		fields[i] = progressField(entry, group)
	}
	_, err := removeFields(ctx, c, k.Progress, fields...)
	return err
}

// DeletePartition deletes all keys of a partition, with its messages. One command; an operator has consented.
func DeletePartition(ctx context.Context, c rueidis.Client, k Keys) error {
	return unlink(ctx, c, k.All()...)
}

// DropGroupRates deletes the buckets of the rates of groups. One command. Without a bucket, a group has all tokens of
// its rate.
func DropGroupRates(ctx context.Context, c rueidis.Client, k Keys, groups []string) error {
	if len(groups) == 0 {
		return nil
	}
	keys := make([]string, len(groups))
	for i, group := range groups {
		keys[i] = k.GroupRate(group)
	}
	return unlink(ctx, c, keys...)
}

// DropHistory deletes the history of a partition. One command; no state depends on a history.
func DropHistory(ctx context.Context, c rueidis.Client, k Keys) error {
	return unlink(ctx, c, k.History)
}

// DropTurns deletes the holds of all keys of a partition, and the lines of waiting messages. One command. Messages that
// wait for their key then go on by PassTurns, and messages of one key may run side by side.
func DropTurns(ctx context.Context, c rueidis.Client, k Keys) error { return unlink(ctx, c, k.Turns) }

func unlink(ctx context.Context, c rueidis.Client, keys ...string) error {
	return Classify("UNLINK "+keys[0], c.Do(ctx, c.B().Unlink().Key(keys...).Build()).Error())
}

// Persist removes the expiry of a key, and reports whether the key had one. One command; no key of duestream that holds
// messages has an expiry.
func Persist(ctx context.Context, c rueidis.Client, key string) (bool, error) {
	done, err := c.Do(ctx, c.B().Persist().Key(key).Build()).AsBool()
	return done, Classify("PERSIST "+key, err)
}

// PurgeDead deletes dead letters, and returns how many it deleted. One command: if several callers delete or redrive a
// letter, XDEL answers 1 to one of them only.
func PurgeDead(ctx context.Context, c rueidis.Client, k Keys, entries []string) (int, error) {
	return deleted(ctx, c, "XDEL "+k.Dead, c.B().Xdel().Key(k.Dead).Id(entries...).Build())
}

// TrimDead deletes dead letters whose entry ID is below minID, and returns how many it deleted. If limit is 0, it
// deletes all of them; else about limit letters, in whole nodes of the stream only. One command.
func TrimDead(ctx context.Context, c rueidis.Client, k Keys, minID string, limit int) (int, error) {
	trim := c.B().Xtrim().Key(k.Dead).Minid().Threshold(minID).Build()
	if limit > 0 {
		trim = c.B().Xtrim().Key(k.Dead).Minid().Almost().Threshold(minID).Limit(int64(limit)).Build()
	}
	return deleted(ctx, c, "XTRIM "+k.Dead, trim)
}

func deleted(ctx context.Context, c rueidis.Client, what string, command rueidis.Completed) (int, error) {
	n, err := c.Do(ctx, command).AsInt64()
	return int(n), Classify(what, err)
}

// Remembered is a name in the dedup windows of a partition, and the end of its window, Unix ms.
type Remembered struct {
	Keys Keys
	Name string
	Ends int64
}

// Remember writes names of an import into the dedup windows. One command for each, in one round trip; no message has
// such a name, and writing it again changes nothing.
func Remember(ctx context.Context, c rueidis.Client, names []Remembered) error {
	var commands rueidis.Commands
	for _, one := range names {
		commands = append(commands,
			c.B().Zadd().Key(one.Keys.Seen).ScoreMember().ScoreMember(float64(one.Ends), one.Name).Build())
	}
	for _, reply := range c.DoMulti(ctx, commands...) {
		if err := reply.Error(); err != nil {
			return Classify("ZADD", err)
		}
	}
	return nil
}

// RemoveTarget removes the push target of a group, and reports whether there was one. One command.
func RemoveTarget(ctx context.Context, c rueidis.Client, k Keys, group string) (bool, error) {
	return removeFields(ctx, c, k.Push, group)
}

// RemoveTokens removes tokens of gateways, by their fields, and reports whether there was any. key is Globals.Tokens.
// One command.
func RemoveTokens(ctx context.Context, c rueidis.Client, key string, fields ...string) (bool, error) {
	return removeFields(ctx, c, key, fields...)
}

func removeFields(ctx context.Context, c rueidis.Client, key string, fields ...string) (bool, error) {
	n, err := c.Do(ctx, c.B().Hdel().Key(key).Field(fields...).Build()).AsInt64()
	return n > 0, Classify("HDEL "+key, err)
}

// EditTokens writes one token of gateways. key is Globals.Tokens. It watches the key; edit reads the tokens over the
// connection, and returns the field to write and its value. If edit fails, nothing is written. done is false without an
// error if another client changed a token before the write.
func EditTokens(ctx context.Context, c rueidis.Client, key string,
	edit func(one rueidis.DedicatedClient) (field, value string, err error)) (done bool, err error) {
	err = Dedicated(ctx, c, func(one rueidis.DedicatedClient) error {
		done = false
		if err := one.Do(ctx, one.B().Watch().Key(key).Build()).Error(); err != nil {
			return Classify("WATCH "+key, err)
		}
		field, value, err := edit(one)
		if err != nil {
			_ = one.Do(ctx, one.B().Unwatch().Build()).Error() // if this fails, the connection ends, and the watch with it
			return err
		}
		write := one.B().Hset().Key(key).FieldValue().FieldValue(field, value).Build()
		done, err = Transact(ctx, one, key, write)
		return err
	})
	return done, err
}
