package dashboard

import (
	"net/url"
	"time"

	"github.com/duestream/duestream/lua"
)

// This file reads and shows times in the viewer's time zone.

// zoneCookie holds the name of the viewer's time zone. The script sets it; without a script the zone is UTC.
const zoneCookie = "duestream_zone"

// zone returns the viewer's time zone, or UTC if it is not known.
func (q *request) zone() *time.Location {
	cookie, err := q.r.Cookie(zoneCookie)
	if err != nil {
		return time.UTC
	}
	zone, ok := loadZone(cookie.Value)
	if !ok {
		return time.UTC
	}
	return zone
}

// loadZone returns the time zone of a name. The zone of this machine has no name that a viewer could mean.
func loadZone(name string) (*time.Location, bool) {
	if name == "" || name == "Local" || len(name) > 64 {
		return nil, false
	}
	zone, err := time.LoadLocation(name)
	return zone, err == nil
}

// zoneField is the hidden field of a form that holds the zone in which the form shows its times. The viewer's zone may
// be another one when the form is sent: the script tells the zone after the first page was made.
const zoneField = "times_in"

// zoneOf returns the zone of the times of a form or an address. If they name none, it is the viewer's zone.
func (q *request) zoneOf(form url.Values) (*time.Location, error) {
	name := form.Get(zoneField)
	if name == "" {
		return q.zone(), nil
	}
	zone, ok := loadZone(name)
	if !ok {
		return nil, lua.Invalid(zoneField, name, "must be a time zone that this process knows")
	}
	return zone, nil
}

// formZone returns the zone of the form of the request, which may be shown again.
func (q *request) formZone() *time.Location {
	zone, err := q.zoneOf(q.query)
	if err != nil {
		return time.UTC
	}
	return zone
}

// localLayout is the form of an input of type datetime-local.
const localLayout = "2006-01-02T15:04:05"

// parseLocal reads a time of an input of type datetime-local in the zone of its form, or a time in RFC 3339.
func (q *request) parseLocal(form url.Values, field, text string) (time.Time, error) {
	zone, err := q.zoneOf(form)
	if err != nil {
		return time.Time{}, err
	}
	for _, layout := range []string{localLayout, "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04"} {
		if t, err := time.ParseInLocation(layout, text, zone); err == nil {
			return t, nil
		}
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, lua.Invalid(field, text, "must be a date and a time, such as 2026-12-24T18:00")
	}
	return t, nil
}
