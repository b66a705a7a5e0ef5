package contract

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // a zone means the same wherever the code runs
)

const dateLayout = "2006-01-02"

// moment says how timestamps and dates of a field are written.
type moment struct {
	unit   int            // epoch: digits from the unit down to nanoseconds (9, 6, 3); 0 = text
	layout string         // "" = RFC 3339, or dateLayout
	zoned  bool           // the layout has an offset
	zone   *time.Location // of texts without offset; nil = none declared
}

// compileMoment reads a field's unit, layout and zone.
func compileMoment(timestamp bool, unit, layout, zone string) (moment, error) {
	m := moment{layout: layout}
	switch {
	case unit == "" || unit == "rfc3339":
	case !timestamp:
		return m, fmt.Errorf("unit %q: a date is a text; leave unit out", unit)
	case layout != "":
		return m, fmt.Errorf("unit %q and layout exclude each other", unit)
	case unit == "s":
		m.unit = 9
	case unit == "ms":
		m.unit = 6
	case unit == "us":
		m.unit = 3
	default:
		return m, fmt.Errorf("unit %q: want rfc3339, s, ms or us", unit)
	}
	if zone != "" {
		// LoadLocation would take these for the machine's own zone.
		if zone == "Local" {
			return m, fmt.Errorf("zone %q: want a name like Europe/Berlin or UTC", zone)
		}
		loc, err := time.LoadLocation(zone)
		if err != nil {
			return m, fmt.Errorf("zone: %w", err)
		}
		m.zone = loc
	}
	switch {
	case !timestamp && zone != "":
		return m, fmt.Errorf("zone %q: a date has no zone", zone)
	case m.unit != 0 && zone != "":
		return m, fmt.Errorf("zone %q: an epoch number has no zone", zone)
	case layout == "":
		return m, nil
	case strings.Contains(layout, "MST"):
		return m, fmt.Errorf("layout %q: abbreviations of zones are ambiguous; write -07:00 or declare zone", layout)
	}
	m.zoned = strings.Contains(layout, "-07") || strings.Contains(layout, "Z07")
	if timestamp && !m.zoned && m.zone == nil {
		return m, fmt.Errorf("layout %q has no offset: declare zone", layout)
	}
	probe := time.Date(2021, 11, 22, 13, 14, 15, 0, time.UTC)
	if t, err := time.Parse(layout, probe.Format(layout)); err != nil || t.UTC().Format(dateLayout) != probe.Format(dateLayout) {
		return m, fmt.Errorf("layout %q: want a Go layout with year, month and day, like 02.01.2006 15:04:05", layout)
	}
	return m, nil
}

// parse reads a text. The instant is in UTC.
func (m moment) parse(text []byte) (time.Time, fault) {
	if m.layout == "" {
		return parseRFC3339(text, m.zone)
	}
	t, err := time.Parse(m.layout, string(text))
	_, offset := t.Zone()
	switch {
	case err != nil || max(offset, -offset) >= 24*60*60: // Go takes +24:60
		return t, fault{CodeTimestampSyntax, "want a timestamp in the declared layout"}
	case tooFine(text):
		return t, fault{CodeTimestampPrecision, "want nothing finer than a nanosecond"}
	case m.zoned:
		return inRange(t.UTC())
	}
	return local(t, m.zone)
}

// tooFine reports whether a fraction in the text says more than nanoseconds: Go drops what is behind them.
func tooFine(text []byte) bool {
	for i, c := range text {
		if c != '.' && c != ',' {
			continue
		}
		for n, d := range text[i+1:] {
			if d-'0' > 9 {
				break
			}
			if n >= 9 && d != '0' {
				return true
			}
		}
	}
	return false
}

// parseDate reads a date into the form of dateLayout.
func (m moment) parseDate(dst, text []byte) ([]byte, fault) {
	if m.layout != "" {
		t, err := time.Parse(m.layout, string(text))
		if err != nil || t.Year() < 1 || t.Year() > 9999 {
			return dst, fault{CodeDateSyntax, "want a date in the declared layout"}
		}
		return t.AppendFormat(dst, dateLayout), fault{}
	}
	y, mo, d, ok := parseDay(text)
	if !ok || len(text) != len(dateLayout) || !realDay(y, mo, d) {
		return dst, fault{CodeDateSyntax, "want a date like 2006-01-02 that exists"}
	}
	return append(dst, text...), fault{}
}

// epoch turns a number in the field's unit into an instant.
func (m moment) epoch(n number) (time.Time, fault) {
	// The number counts nanoseconds as the first `total` of its digits, filled up with zeros.
	total := n.exp + m.unit
	switch {
	case len(n.digits) > max(total, 0):
		return time.Time{}, fault{CodeTimestampPrecision, "want nothing finer than a nanosecond"}
	case total > 21: // year 9999 has 21 digits
		return time.Time{}, fault{CodeTimestampRange, "want a year from 1 to 9999; is the unit right?"}
	}
	var sec, nsec int64
	for i := range total {
		d := int64(0)
		if i < len(n.digits) {
			d = int64(n.digits[i] - '0')
		}
		if i < total-9 {
			sec = sec*10 + d
		} else {
			nsec = nsec*10 + d
		}
	}
	if n.neg {
		sec, nsec = -sec, -nsec
	}
	return inRange(time.Unix(sec, nsec).UTC())
}

func inRange(t time.Time) (time.Time, fault) {
	if y := t.Year(); y < 1 || y > 9999 {
		return t, fault{CodeTimestampRange, "want a year from 1 to 9999"}
	}
	return t, fault{}
}

// parseRFC3339 reads a timestamp; zone is for texts without offset.
func parseRFC3339(b []byte, zone *time.Location) (time.Time, fault) {
	syntax := fault{CodeTimestampSyntax, "want RFC 3339, like 2006-01-02T15:04:05Z"}
	y, mo, d, ok := parseDay(b)
	if !ok || len(b) < 19 || b[10]|0x20 != 't' || b[13] != ':' || b[16] != ':' {
		return time.Time{}, syntax
	}
	h, ok1 := digits2(b[11:])
	mi, ok2 := digits2(b[14:])
	s, ok3 := digits2(b[17:])
	if !ok1 || !ok2 || !ok3 {
		return time.Time{}, syntax
	}
	if !realDay(y, mo, d) || h > 23 || mi > 59 || s > 59 {
		return time.Time{}, fault{CodeTimestampSyntax, "want a day and a time of day that exist (no 24:00:00, no second 60)"}
	}
	b = b[19:]
	nsec, fine := 0, false
	if len(b) > 0 && b[0] == '.' {
		i := 1
		for ; i < len(b) && b[i]-'0' <= 9; i++ {
			switch {
			case i <= 9:
				nsec = nsec*10 + int(b[i]-'0')
			case b[i] != '0':
				fine = true
			}
		}
		if i == 1 {
			return time.Time{}, syntax
		}
		for k := i; k <= 9; k++ {
			nsec *= 10
		}
		b = b[i:]
	}
	t := time.Date(y, time.Month(mo), d, h, mi, s, nsec, time.UTC)
	offset, ok := parseOffset(b)
	switch {
	case !ok:
		return t, syntax
	case fine:
		return t, fault{CodeTimestampPrecision, "want nothing finer than a nanosecond"}
	case len(b) > 0:
		return inRange(t.Add(-offset))
	case zone == nil:
		return t, fault{CodeTimestampNoZone, "want an offset, like Z or +02:00; or declare zone in the contract"}
	}
	return local(t, zone)
}

// parseOffset reads nothing, Z, ±hh:mm or ±hhmm.
func parseOffset(b []byte) (time.Duration, bool) {
	if len(b) == 0 || len(b) == 1 && b[0]|0x20 == 'z' {
		return 0, true
	}
	if len(b) == 6 && b[3] == ':' {
		b = append([]byte{b[0], b[1], b[2]}, b[4:]...)
	}
	if len(b) != 5 || b[0] != '+' && b[0] != '-' {
		return 0, false
	}
	h, ok1 := digits2(b[1:])
	m, ok2 := digits2(b[3:])
	d := time.Duration(h)*time.Hour + time.Duration(m)*time.Minute
	if b[0] == '-' {
		d = -d
	}
	return d, ok1 && ok2 && h <= 23 && m <= 59
}

// local takes the wall clock reading of t, written in UTC, as a reading in the zone: the earlier instant where clocks show
// it twice.
func local(t time.Time, zone *time.Location) (time.Time, fault) {
	const day = 24 * time.Hour
	for _, around := range [2]time.Time{t.Add(-day), t.Add(day)} {
		_, offset := around.In(zone).Zone()
		u := t.Add(-time.Duration(offset) * time.Second)
		if _, o := u.In(zone).Zone(); o == offset {
			return inRange(u)
		}
	}
	return t, fault{CodeTimestampSyntax, "no such time of day in the declared zone: clocks skip it"}
}

// parseDay reads the YYYY-MM-DD that b begins with.
func parseDay(b []byte) (y, m, d int, ok bool) {
	if len(b) < 10 || b[4] != '-' || b[7] != '-' {
		return 0, 0, 0, false
	}
	c, ok0 := digits2(b)
	y, ok1 := digits2(b[2:])
	m, ok2 := digits2(b[5:])
	d, ok3 := digits2(b[8:])
	return 100*c + y, m, d, ok0 && ok1 && ok2 && ok3
}

func realDay(y, m, d int) bool {
	if y < 1 || m < 1 || m > 12 || d < 1 {
		return false
	}
	return d <= 28 || d <= time.Date(y, time.Month(m)+1, 0, 0, 0, 0, 0, time.UTC).Day()
}

// appendZulu brings RFC 3339 in UTC into the stored form, most timestamps by far: its digits are those of the stored form
// already. It reports false for every other text, which [parseRFC3339] reads or refuses.
func appendZulu(dst, b []byte) ([]byte, bool) {
	const frame, nanos = len("2006-01-02T15:04:05"), 9
	end := len(b) - 1
	if end < frame || end > frame+1+nanos || b[end] != 'Z' || b[10] != 'T' || b[13] != ':' || b[16] != ':' {
		return dst, false
	}
	y, mo, d, ok := parseDay(b)
	h, ok1 := digits2(b[11:])
	mi, ok2 := digits2(b[14:])
	s, ok3 := digits2(b[17:])
	if !ok || !ok1 || !ok2 || !ok3 || h > 23 || mi > 59 || s > 59 || !realDay(y, mo, d) {
		return dst, false
	}
	fraction := b[frame:end]
	if len(fraction) == 1 || len(fraction) > 1 && fraction[0] != '.' {
		return dst, false
	}
	dst = append(append(dst, b[:frame]...), '.')
	if len(fraction) > 1 {
		for _, c := range fraction[1:] {
			if c-'0' > 9 {
				return dst, false
			}
		}
		dst = append(dst, fraction[1:]...)
	}
	return append(append(dst, "000000000"[max(len(fraction)-1, 0):]...), 'Z'), true
}

func digits2(b []byte) (int, bool) {
	return int(b[0]-'0')*10 + int(b[1]-'0'), b[0]-'0' <= 9 && b[1]-'0' <= 9
}

// appendTimestamp writes an instant of the years 1 to 9999 in the stored form.
func appendTimestamp(dst []byte, t time.Time) []byte {
	t = t.UTC()
	y, mo, d := t.Date()
	h, mi, s := t.Clock()
	dst = append(appendDigits(dst, y, 4), '-')
	dst = append(appendDigits(dst, int(mo), 2), '-')
	dst = append(appendDigits(dst, d, 2), 'T')
	dst = append(appendDigits(dst, h, 2), ':')
	dst = append(appendDigits(dst, mi, 2), ':')
	dst = append(appendDigits(dst, s, 2), '.')
	return append(appendDigits(dst, t.Nanosecond(), 9), 'Z')
}

// appendDigits writes n, not negative, with leading zeros.
func appendDigits(dst []byte, n, width int) []byte {
	start := len(dst)
	dst = append(dst, "000000000"[:width]...)
	for i := start + width - 1; n > 0 && i >= start; i-- {
		dst[i] = byte('0' + n%10)
		n /= 10
	}
	return dst
}

// appendVersion turns a stored timestamp into its form as a version, which is its digits alone.
func appendVersion(dst, stored []byte) []byte {
	s := stored[:len("2006-01-02T15:04:05.000000000Z")]
	dst = append(dst, s[0], s[1], s[2], s[3], s[5], s[6], s[8], s[9], s[11], s[12], s[14], s[15], s[17], s[18])
	return append(dst, s[20:29]...)
}
