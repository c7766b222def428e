package dashboard

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/written"
	"github.com/duestream/duestream/lua"
)

// This file holds the tab of settings: the editor, the differences before saving, and the action that saves.
//
// The form names each setting by its word in commands. An empty value removes the queue's or group's own setting. The
// field "was.<word>" holds the stored value that the viewer has seen, so a change by somebody else is noticed.

// settingsView is the data of the tab.
type settingsView struct {
	Group    string   // of the address; "" = the whole queue
	Groups   []string // with figures or with settings of their own
	Rows     []settingRow
	Changing bool            // the viewer has edited the form, and sees the differences
	Changes  []settingChange // to confirm
	Tried    string          // how long messages are tried, before and after the changes; "" = it does not change
	Moved    []settingMoved  // settings that somebody else has changed meanwhile
}

// settingRow is a setting in the editor.
type settingRow struct {
	admin.SettingInForce
	InForce   string // value, as people write it; "" = none
	Inherits  string // value without an own setting
	Own       string // own value
	Typed     string // value of the field
	Unit      string
	Help      string
	Plain     string // meaning of the value in force
	BuiltIn   string
	IsSwitch  bool
	IsInvalid bool // the stored value is invalid
}

// settingChange is a difference that the viewer confirms.
type settingChange struct {
	Word, Old, New string
	OldFrom        string // where the old value comes from
	NewFrom        string
	Plain          string // meaning of the new value
	Warning        string
}

// settingMoved is a setting that was changed between the reading of the form and now.
type settingMoved struct{ Word, Was, Now string }

// settingsEdit is the change that the viewer asks for.
type settingsEdit struct {
	update  admin.PolicyUpdate
	before  map[string]string       // stored values of the settings to change, by name
	changed map[string]policy.Value // by name; without cleared settings
	moved   []settingMoved
}

// changedMeanwhile: somebody else changed settings after the viewer had read the form.
type changedMeanwhile struct{ words []string }

func (e changedMeanwhile) Error() string {
	return fmt.Sprintf("somebody else has changed %s meanwhile. Nothing was saved: check the differences, and save again",
		strings.Join(e.words, ", "))
}

func showSettings(q *request, state queueState) (any, error) {
	v := settingsView{Group: q.query.Get("group")}
	all, err := q.settings()
	if err != nil {
		return nil, err
	}
	if v.Groups, err = q.settingGroups(state); err != nil {
		return nil, err
	}
	partitions, err := q.op.Partitions(q.ctx, q.queue())
	if err != nil {
		return nil, err
	}
	var edit settingsEdit
	if q.query.Has("change") && q.may(access.Operate, q.queue()) {
		edit, err = q.edit(all)
		if err != nil && q.problem == nil {
			q.problem = err
		}
		v.Changing, v.Moved = err == nil, edit.moved
	}
	for _, f := range all {
		v.Rows = append(v.Rows, q.settingRow(f, partitions.Latest()))
		if v.Changing {
			v.addChange(f, edit, partitions.Latest())
		}
	}
	if v.Changing {
		v.Tried = triedText(all, edit)
	}
	return v, nil
}

// settings returns the settings of the queue or group of the address.
func (q *request) settings() ([]admin.SettingInForce, error) {
	group := q.query.Get("group")
	if group != "" {
		if err := q.op.CheckGroup(q.ctx, q.queue(), group); err != nil {
			return nil, err
		}
	}
	return q.op.Settings(q.ctx, q.queue(), group)
}

// settingGroups returns the groups that may have settings.
func (q *request) settingGroups(state queueState) ([]string, error) {
	groups, err := q.op.GroupsWithSettings(q.ctx, q.queue())
	if err != nil {
		return nil, err
	}
	for _, g := range state.Groups {
		groups = append(groups, g.Name)
	}
	slices.Sort(groups)
	return slices.Compact(groups), nil
}

// settingRow returns a row of the editor.
func (q *request) settingRow(f admin.SettingInForce, partitions int) settingRow {
	row := settingRow{
		SettingInForce: f, InForce: shown(f.Setting, f.Value), Inherits: shown(f.Setting, f.Inherited),
		Own:     fieldText(f, f.Stored),
		Help:    describe(f.Setting),
		BuiltIn: shown(f.Setting, f.Get(policy.Default())), IsSwitch: f.Kind == policy.Switch,
		Plain: plainWords(f.Setting, f.Value, partitions),
	}
	switch f.Kind {
	case policy.Duration:
		row.Unit = "a duration, such as 30s or 7d"
	case policy.Delays:
		row.Unit = "durations, such as 1m,3m,5m"
	case policy.Rate:
		row.Unit = "a rate, such as 5/s, 100/m or 1000/h"
	case policy.Count:
		row.Unit = "a whole number"
	}
	if f.Stored != "" {
		_, err := f.ParseStored(f.Stored)
		row.IsInvalid = err != nil
	}
	row.Typed = row.Own
	if q.query.Has(f.Word) && !q.isUntouched(f) {
		row.Typed = q.query.Get(f.Word)
	}
	return row
}

// fieldText returns a stored value as the field of the form shows it.
func fieldText(f admin.SettingInForce, stored string) string {
	if stored == "" {
		return ""
	}
	v, err := f.ParseStored(stored)
	if err != nil {
		return stored
	}
	text := written.Setting(f.Setting, v)
	switch {
	case text == "" && f.Kind == policy.Word:
		return f.Words[0]
	case text == "": // no rate, or no delays: set, and not inherited
		return "0"
	}
	return text
}

// isUntouched reports whether the viewer left the field as the form showed it. Then the present value counts, even if
// somebody else has changed it meanwhile.
func (q *request) isUntouched(f admin.SettingInForce) bool {
	was, known := q.query["was."+f.Word]
	return known && q.query.Get(f.Word) == fieldText(f, was[0])
}

// maxZero is the length up to which the meaning of zero is shown with each value. The description has it, too.
const maxZero = 20

// shown returns a value as people write it, with the meaning of zero if it has one.
func shown(s policy.Setting, v policy.Value) string {
	text := written.Setting(s, v)
	switch {
	case text == "" && s.Kind == policy.Word:
		return s.Words[0]
	case s.Zero != "" && len(s.Zero) <= maxZero && v == policy.Value{}:
		return "0 (" + s.Zero + ")"
	case text == "":
		return "0"
	}
	return text
}

// describe returns the description of a setting as a sentence.
func describe(s policy.Setting) string {
	text := written.Describe(s, func(s policy.Setting) string { return s.Word })
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// plainWords returns what a limit means; "" for settings whose value speaks for itself.
func plainWords(s policy.Setting, v policy.Value, partitions int) string {
	text := ""
	switch {
	case s.Name == admin.SettingRate && v.Text != "":
		count, unit, _ := strings.Cut(v.Text, "/")
		text = fmt.Sprintf("At most %s ready per %s", plural(count, "message becomes", "messages become"),
			map[string]string{"s": "second", "m": "minute", "h": "hour"}[unit])
	case s.Name == admin.SettingReadyLimit && v.Number > 0:
		text = fmt.Sprintf("Messages stay scheduled while %s wait for the slowest group", number(v.Number))
	case s.Name == admin.SettingBurst && v.Number > 0:
		text = fmt.Sprintf("Up to %s messages become ready at once after a quiet time", number(v.Number))
	case s.Name == admin.SettingHistory && v.Number > 0:
		text = fmt.Sprintf("The history keeps the newest %s changes of state", number(v.Number))
	}
	switch {
	case text == "":
		return ""
	case partitions > 1:
		return text + fmt.Sprintf(", in each of the %d partitions.", partitions)
	}
	return text + "."
}

// edit reads the form: the settings to change, and those that somebody else has changed since it was shown. The error
// has all faults of the form.
func (q *request) edit(all []admin.SettingInForce) (settingsEdit, error) {
	e := settingsEdit{changed: map[string]policy.Value{}, before: map[string]string{}}
	var errs []error
	for _, f := range all {
		was, known := q.query["was."+f.Word]
		if known && was[0] != f.Stored {
			e.moved = append(e.moved, settingMoved{f.Word, storedText(f, was[0]), storedText(f, f.Stored)})
		}
		if !q.query.Has(f.Word) || q.isUntouched(f) {
			continue
		}
		text := strings.TrimSpace(q.query.Get(f.Word))
		if text == "" {
			if f.Stored != "" {
				e.update.Clear = append(e.update.Clear, f.Name)
				e.before[f.Name] = f.Stored
			}
			continue
		}
		v, err := written.ParseSetting(f.Setting, text)
		if err != nil {
			var invalid *lua.InvalidError
			if !errors.As(err, &invalid) {
				err = lua.Invalid(f.Word, text, "%s", err.Error())
			}
			errs = append(errs, inField(f.Word, err))
			continue
		}
		if stored, err := f.ParseStored(f.Stored); err == nil && f.Stored != "" && stored == v {
			continue
		}
		f.Put(&e.update, v)
		e.changed[f.Name] = v
		e.before[f.Name] = f.Stored
	}
	errs = append(errs, byWords(e.update.Check(q.query.Get("group"))))
	return e, errors.Join(errs...)
}

// storedText returns a stored value as people write it.
func storedText(f admin.SettingInForce, stored string) string {
	return cmp.Or(fieldText(f, stored), "not set")
}

// byWords puts each error about a setting beside the setting's field.
func byWords(err error) error {
	switch e := err.(type) {
	case *lua.InvalidError:
		if s, known := policy.Named(e.Field); known {
			retryMin, _ := policy.Named(policy.SettingRetryMin) // the only setting that a rule mentions
			return inField(s.Word, &lua.InvalidError{Field: e.Field, Value: e.Value,
				Rule: strings.ReplaceAll(e.Rule, retryMin.Name, retryMin.Word)})
		}
	case interface{ Unwrap() []error }:
		var all []error
		for _, one := range e.Unwrap() {
			all = append(all, byWords(one))
		}
		return errors.Join(all...)
	}
	return err
}

// settingsText returns the own settings that a change writes, before and after it, for the audit log.
func settingsText(all []admin.SettingInForce, e settingsEdit) string {
	var words []string
	for _, f := range all {
		own := "none"
		if f.Stored != "" {
			own = f.Stored
		}
		if v, isChanged := e.changed[f.Name]; isChanged {
			words = append(words, fmt.Sprintf("%s: %s to %s", f.Word, own, cmp.Or(shown(f.Setting, v), "none")))
		} else if slices.Contains(e.update.Clear, f.Name) {
			words = append(words, fmt.Sprintf("%s: %s to none", f.Word, own))
		}
	}
	return strings.Join(words, ", ")
}

// addChange adds the difference of a setting, if the viewer changes it.
func (v *settingsView) addChange(f admin.SettingInForce, e settingsEdit, partitions int) {
	c := settingChange{Word: f.Word, Old: shown(f.Setting, f.Value), OldFrom: sourceText(f.From)}
	value, isChanged := e.changed[f.Name]
	from := policy.FromQueue
	if v.Group != "" {
		from = policy.FromGroup
	}
	switch {
	case isChanged:
	case slices.Contains(e.update.Clear, f.Name):
		value, from = f.Inherited, f.InheritedFrom
	default:
		return
	}
	c.New, c.NewFrom = shown(f.Setting, value), sourceText(from)
	c.Plain = cmp.Or(plainWords(f.Setting, value, partitions), describe(f.Setting))
	if f.Name == admin.SettingHistory && value.Number == 0 && f.Value.Number > 0 {
		c.Warning = "The present history is deleted."
	}
	v.Changes = append(v.Changes, c)
}

// triedText says how long messages are tried before they become dead letters, if the changes change it.
func triedText(all []admin.SettingInForce, e settingsEdit) string {
	before := policy.Default()
	for _, f := range all {
		f.Set(&before, f.Value)
	}
	after := before
	for _, f := range all {
		if v, isChanged := e.changed[f.Name]; isChanged {
			f.Set(&after, v)
		} else if slices.Contains(e.update.Clear, f.Name) {
			f.Set(&after, f.Inherited)
		}
	}
	if before.TriedFor() == after.TriedFor() && before.MaxAttempts == after.MaxAttempts {
		return ""
	}
	text := func(p bridge.Policy) string {
		return fmt.Sprintf("%s within about %s", plural(p.MaxAttempts, "attempt", "attempts"), span(p.TriedFor()))
	}
	return fmt.Sprintf("A message that fails becomes a dead letter after %s. Until now: %s.", text(after), text(before))
}

// sourceText returns a level in words.
func sourceText(s policy.Source) string {
	return map[policy.Source]string{
		policy.FromGroup: "of the group", policy.FromQueue: "of the queue", policy.FromDefaults: "default of all queues",
		policy.FromBuiltIn: "built in",
	}[s]
}

// Alias returns the word of the pages for a setting whose name in commands is another one; "" = it is the same.
func (r settingRow) Alias() string {
	return map[string]string{admin.SettingHeld: "paused", admin.SettingHeldWorkers: "workers paused"}[r.Name]
}

// Source returns the level of the value in force in words.
func (r settingRow) Source() string { return sourceText(r.From) }

// InheritedSource returns the level of the inherited value in words.
func (r settingRow) InheritedSource() string { return sourceText(r.InheritedFrom) }

// saveSettings is the action of the page of differences.
func saveSettings(q *request) (done, error) {
	q.query.Set("tab", "settings")
	q.query.Set("change", "1") // after an error the page shows the differences, or the faults
	all, err := q.settings()
	if err != nil {
		return done{}, err
	}
	e, err := q.edit(all)
	if err != nil {
		return done{}, err
	}
	if len(e.moved) > 0 {
		var words []string
		for _, m := range e.moved {
			words = append(words, m.Word)
		}
		return done{}, changedMeanwhile{words}
	}
	group := q.query.Get("group")
	page, err := href("queue", "queue", q.queue(), "tab", "settings", "group", group)
	if err != nil {
		return done{}, err
	}
	if len(e.changed)+len(e.update.Clear) == 0 {
		return done{notice: "Nothing was changed: these are the present settings.", page: page}, nil
	}
	q.about(slog.String("settings", settingsText(all, e)))
	if err := q.op.WritePolicyOver(q.ctx, q.queue(), group, e.before, e.update); err != nil {
		return done{}, err
	}
	text := fmt.Sprintf("%s changed. Bridges and workers follow within seconds.",
		plural(len(e.changed)+len(e.update.Clear), "setting was", "settings were"))
	return done{notice: text, page: page}, nil
}
