package contract_test

import (
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/pipeline"
)

// valueCase is a JSON value and what becomes of it: the column's text, "-" for left out, or the codes.
type valueCase struct{ name, in, want string }

func runValues(t *testing.T, f pipeline.Field, cases []valueCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if got := column(t, f, tc.in); got != tc.want {
				t.Errorf("%s of %s: got %s, want %s", f.Type, tc.in, got, tc.want)
			}
		})
	}
}

const nines38 = "99999999999999999999999999999999999999"

func TestInteger(t *testing.T) {
	runValues(t, pipeline.Field{Type: "integer"}, []valueCase{
		// integers with a point, fractions in integer fields
		{"point zero", `9767.0`, `9767`},
		{"point zero in a string", `"9767.0"`, `9767`},
		{"exponent", `1e2`, `100`},
		{"fraction", `24000.5`, `not_integer`},
		{"string", `"12"`, `12`},
		{"spaces", `" 12 "`, `number_syntax`},
		{"boolean", `true`, `type`},
		{"beyond float64", `9007199254740993.0`, `9007199254740993`},
		{"minus zero", `-0`, `0`},
		{"minus zero with a point", `-0.000e7`, `0`},
		{"empty", `""`, `number_syntax`},
		{"null", `null`, `-`},
		{"absent", ``, `-`},
		{"huge", `1e400`, `number_out_of_range`},
		{"leading zeros", `"0012"`, `number_syntax`},
		{"a fraction float64 would lose", `12.000000000000000000001`, `not_integer`},
		// more
		{"64-bit neighbours", `634866135153775565`, `634866135153775565`},
		{"unsigned 64", `18446744073709551615`, `18446744073709551615`},
		{"23 digits", `50719297655545113494805`, `50719297655545113494805`},
		{"38 digits", nines38, nines38},
		{"38 digits, negative", "-" + nines38, "-" + nines38},
		{"39 digits", `1` + nines38, `number_too_long`},
		{"41 digits", `12345678901234567890123456789012345678901`, `number_too_long`},
		{"39 digits of which one counts", `1e38`, `number_too_long`},
		{"38 digits by exponent", `1E+37`, `1` + strings.Repeat("0", 37)},
		{"exponent undone by digits", `1200e-2`, `12`},
		{"tiny", `1e-400`, `not_integer`},
		{"zero with any exponent", `0e999999999999999999999`, `0`},
		{"exponent of many digits", `1e999999999999999999999`, `number_out_of_range`},
		{"plus", `"+5"`, `number_syntax`},
		{"hex", `"0x10"`, `number_syntax`},
		{"infinity", `"Infinity"`, `number_syntax`},
		{"separators", `"1,000"`, `number_syntax`},
		{"bare point", `"5."`, `number_syntax`},
		{"bare exponent", `"5e"`, `number_syntax`},
		{"bare minus", `"-"`, `number_syntax`},
		{"other digits", `"١٢"`, `number_syntax`},
		{"array", `[1]`, `type`},
		{"object", `{}`, `type`},
	})
	runValues(t, pipeline.Field{Type: "integer", Clean: []string{"trim"}}, []valueCase{
		{"spaces trimmed", `" 12\t"`, `12`},
	})
	runValues(t, pipeline.Field{Type: "integer", Min: new("-5"), Max: new("1000")}, []valueCase{
		{"min", `-5`, `-5`}, {"below", `-6`, `min`}, {"far below", `-10`, `min`},
		{"max", `1000`, `1000`}, {"above", `1001`, `max`}, {"more digits", `10000`, `max`}, {"fewer digits", `999`, `999`},
	})
}

// TestSeparators: numbers in texts as people write them, by declaration only; JSON numbers stay what they are.
func TestSeparators(t *testing.T) {
	runValues(t, pipeline.Field{Type: "decimal", DecimalComma: true, Thousands: "point", Min: new("-1e6"), Max: new("1e7")}, []valueCase{
		{"comma", `"1234,50"`, `1234.5`}, {"groups", `"1.234.567,891"`, `1234567.891`}, {"negative", `"-12.345,6"`, `-12345.6`}, {"one group", `"123"`, `123`},
		{"no fraction", `"1.234"`, `1234`}, {"zero", `"0,00"`, `0`}, {"a JSON number", `1234.5`, `1234.5`}, {"exponent", `"1,5e3"`, `1500`},
		{"bounds are plain", `"10.000.000,01"`, `max`}, {"38 digits", `"` + nines38[:37] + `,1"`, `max`},
		{"group of two", `"1.23"`, `number_syntax`}, {"group of two in the middle", `"1.23.456"`, `number_syntax`}, {"group of four", `"1.2345"`, `number_syntax`}, {"first group of four", `"1234.567"`, `number_syntax`},
		{"empty group", `"1..234"`, `number_syntax`}, {"leading separator", `".123"`, `number_syntax`}, {"trailing separator", `"123."`, `number_syntax`},
		{"separator in the fraction", `"1,234.567"`, `number_syntax`}, {"two commas", `"1,2,3"`, `number_syntax`}, {"bare comma", `"1,"`, `number_syntax`}, {"comma first", `",5"`, `number_syntax`},
		{"leading zeros", `"0.012"`, `number_syntax`}, {"spaces", `" 1"`, `number_syntax`}, {"empty", `""`, `number_syntax`}, {"minus", `"-"`, `number_syntax`}, {"letters", `"1x"`, `number_syntax`},
		{"separator in the exponent", `"1e1.000"`, `number_syntax`},
	})
	runValues(t, pipeline.Field{Type: "integer", Thousands: "comma"}, []valueCase{
		{"groups", `"1,234,567"`, `1234567`}, {"point zero", `"1,234.0"`, `1234`}, {"fraction", `"1,234.5"`, `not_integer`}, {"JSON text", `"1234"`, `1234`},
	})
	runValues(t, pipeline.Field{Type: "integer", Thousands: "space"}, []valueCase{
		{"space", `"1 234"`, `1234`}, {"no-break spaces", "\"1\u00a0234\u202f567\"", `1234567`}, {"escaped", `"1\u00a0234"`, `1234`}, {"another space", "\"1\u2003234\"", `number_syntax`},
	})
	runValues(t, pipeline.Field{Type: "decimal", Thousands: "apostrophe"}, []valueCase{
		{"apostrophe", `"1'234.50"`, `1234.5`}, {"typographic", "\"1\u2019234.50\"", `1234.5`},
	})
	runValues(t, pipeline.Field{Type: "decimal", DecimalComma: true}, []valueCase{
		{"comma", `"1,5"`, `1.5`}, {"point", `"1.5"`, `number_syntax`},
	})
	runValues(t, pipeline.Field{Type: "list", Items: "decimal", DecimalComma: true}, []valueCase{
		{"elements", `["1,5",2.5]`, `[1.5,2.5]`},
	})
}

// TestNullable: null is as good as none unless the contract says otherwise.
func TestNullable(t *testing.T) {
	for _, c := range []struct {
		f            pipeline.Field
		null, absent string
	}{
		{pipeline.Field{}, "-", "-"},
		{pipeline.Field{Nullable: new(true)}, "-", "-"},
		{pipeline.Field{Nullable: new(false)}, "null", "-"},
		{pipeline.Field{Required: true}, "null", "missing"},
		{pipeline.Field{Required: true, Nullable: new(true)}, "-", "missing"},
		{pipeline.Field{Default: new("d")}, `"d"`, `"d"`},
		{pipeline.Field{Default: new("d"), Nullable: new(false)}, "null", `"d"`},
		{pipeline.Field{Const: new("c"), Required: true, Nullable: new(true)}, `"c"`, "missing"},
	} {
		c.f.Type = "string"
		if null, absent := column(t, c.f, `null`), column(t, c.f, ``); null != c.null || absent != c.absent {
			t.Errorf("%+v: null gives %s, none %s; want %s, %s", c.f, null, absent, c.null, c.absent)
		}
	}
}

func TestDecimal(t *testing.T) {
	runValues(t, pipeline.Field{Type: "decimal"}, []valueCase{
		{"plain", `12.50`, `12.5`},
		{"string", `"12.50"`, `12.5`},
		{"whole", `12.0`, `12`},
		{"tenth", `0.1`, `0.1`},
		{"exponent up", `1.5e3`, `1500`},
		{"exponent down", `15E-4`, `0.0015`},
		{"negative", `-0.50`, `-0.5`},
		{"minus zero", `-0.0`, `0`},
		{"38 digits", `0.` + nines38, `0.` + nines38},
		{"38 digits around the point", `1234567890123456789.0123456789012345678`, `1234567890123456789.0123456789012345678`},
		{"39 digits", `1.` + nines38, `number_too_long`},
		{"39 digits, the last a zero", nines38 + `.0`, nines38},
		{"largest", nines38 + `e88`, nines38 + strings.Repeat("0", 88)},
		{"too large", `1e126`, `number_out_of_range`},
		{"smallest", `1e-130`, `0.` + strings.Repeat("0", 129) + `1`},
		{"too small", `9e-131`, `number_out_of_range`},
		{"text", `"N/A"`, `number_syntax`},
		{"comma", `"12,5"`, `number_syntax`},
		{"boolean", `false`, `type`},
	})
	runValues(t, pipeline.Field{Type: "decimal", Min: new("-1.5"), Max: new("10.25")}, []valueCase{
		{"min", `-1.50`, `-1.5`}, {"below", `-1.51`, `min`}, {"inside", `-1.4`, `-1.4`}, {"zero", `0`, `0`},
		{"max", `10.25`, `10.25`}, {"above", `10.250000000000000000001`, `max`}, {"below max", `9.999`, `9.999`},
	})
}

func TestString(t *testing.T) {
	runValues(t, pipeline.Field{Type: "string"}, []valueCase{
		{"plain", `"a"`, `"a"`},
		{"empty is kept", `""`, `""`},
		{"null is absent", `null`, `-`},
		{"spaces are kept", `" a "`, `" a "`},
		{"escapes undone", `"\u00e9\/\u0041\ud83d\ude00"`, `"é/A😀"`},
		{"escapes kept", `"\"\\\b\f\n\r\t\u0000\u001F"`, `"\"\\\b\f\n\r\t\u0000\u001f"`},
		{"number", `42`, `"42"`},
		{"number with a point", `42.0`, `"42"`},
		{"number of 41 digits", `12345678901234567890123456789012345678901`, `"12345678901234567890123456789012345678901"`},
		{"number as text is left alone", `"42.0"`, `"42.0"`},
		{"number that would fill memory", `1e999999999`, `number_out_of_range`},
		{"number that would fill memory with a fraction", `1e-999999999`, `number_out_of_range`},
		{"boolean", `true`, `type`},
		{"array", `["a"]`, `type`},
		{"half a surrogate pair", `"a\ud83d"`, `bad_text`},
		{"the other half", `"\ude00"`, `bad_text`},
	})
	runValues(t, pipeline.Field{Type: "string", Clean: []string{"trim", "collapse", "lower"}}, []valueCase{
		{"all three", `" Ana\t\n PÉREZ\u00a0 "`, `"ana pérez"`},
		{"nothing left", `" \u2003 "`, `""`},
		{"nothing to do", `"x"`, `"x"`},
	})
	runValues(t, pipeline.Field{Type: "string", Clean: []string{"upper"}}, []valueCase{{"upper", `"aß é"`, `"Aß É"`}})
	runValues(t, pipeline.Field{Type: "string", Clean: []string{"nfc"}}, []valueCase{
		{"composed", `"e\u0301"`, `"é"`}, {"composed already", `"é"`, `"é"`},
	})
	runValues(t, pipeline.Field{Type: "string", MinLen: new(2), MaxLen: new(3), Pattern: "^[a-zé]+$"}, []valueCase{
		{"characters, not bytes", `"éé"`, `"éé"`},
		{"short", `"a"`, `too_short`},
		{"long", `"aaaa"`, `too_long`},
		{"pattern", `"a1"`, `pattern`},
		{"all faults", `"1"`, `too_short pattern`},
	})
	runValues(t, pipeline.Field{Type: "string", Enum: []string{"a", "b"}, Default: new("a")}, []valueCase{
		{"in", `"b"`, `"b"`}, {"out", `"c"`, `enum`}, {"case counts", `"A"`, `enum`}, {"absent", ``, `"a"`}, {"null", `null`, `"a"`},
	})
	runValues(t, pipeline.Field{Type: "string", Const: new("eu")}, []valueCase{
		{"equal", `"eu"`, `"eu"`}, {"absent", ``, `"eu"`}, {"other", `"us"`, `const`},
	})
	runValues(t, pipeline.Field{Type: "string", Const: new("eu"), Required: true}, []valueCase{
		{"const that must be there", `"eu"`, `"eu"`}, {"const, absent", ``, `missing`}, {"const, null", `null`, `null`},
	})
	runValues(t, pipeline.Field{Type: "string", Required: true}, []valueCase{
		{"there", `""`, `""`}, {"absent", ``, `missing`}, {"null", `null`, `null`},
	})
}

func TestBoolean(t *testing.T) {
	runValues(t, pipeline.Field{Type: "boolean"}, []valueCase{
		{"true", `true`, `true`}, {"false", `false`, `false`},
		{"1", `1`, `true`}, {"0", `0`, `false`}, {"1.0", `1.0`, `true`}, {"-0", `-0`, `false`},
		{"2", `2`, `boolean_syntax`}, {"-1", `-1`, `boolean_syntax`}, {"0.1", `0.1`, `boolean_syntax`}, {"10", `10`, `boolean_syntax`}, {"1e999999999", `1e999999999`, `boolean_syntax`},
		{"1e-900000000", `1e-900000000`, `boolean_syntax`}, {"10e-1", `10e-1`, `true`}, {"0e900000000", `0e900000000`, `false`},
		{"yes", `"Yes"`, `true`}, {"y", `"y"`, `true`}, {"on", `"ON"`, `true`}, {"t", `"t"`, `true`}, {"string 1", `"1"`, `true`}, {"string true", `"TRUE"`, `true`},
		{"no", `"no"`, `false`}, {"n", `"N"`, `false`}, {"off", `"off"`, `false`}, {"f", `"F"`, `false`}, {"string 0", `"0"`, `false`},
		{"long s", `"falſe"`, `boolean_syntax`}, {"empty", `""`, `boolean_syntax`}, {"other", `"verdad"`, `boolean_syntax`}, {"space", `" true"`, `boolean_syntax`},
		{"array", `[]`, `type`},
	})
}

func TestTimestamp(t *testing.T) {
	runValues(t, pipeline.Field{Type: "timestamp"}, []valueCase{
		// +0000, no zone
		{"+0000", `"2019-04-09T16:38:44.743+0000"`, `"2019-04-09T16:38:44.743000000Z"`},
		{"-0730", `"2019-04-09T16:38:44.743-0730"`, `"2019-04-10T00:08:44.743000000Z"`},
		{"-07:30", `"2019-04-09T16:38:44.743-07:30"`, `"2019-04-10T00:08:44.743000000Z"`},
		{"no zone", `"2019-04-09T16:38:44"`, `timestamp_no_zone`},
		{"space for T", `"2019-04-09 16:38:44Z"`, `timestamp_syntax`},
		{"hours alone", `"2019-04-09T16:38:44-07"`, `timestamp_syntax`},
		{"comma", `"2019-04-09T16:38:44,5Z"`, `timestamp_syntax`},
		{"date", `"2019-04-09"`, `timestamp_syntax`},
		// more
		{"Z", `"2019-04-09T16:38:44Z"`, `"2019-04-09T16:38:44.000000000Z"`},
		{"lower case", `"2019-04-09t16:38:44z"`, `"2019-04-09T16:38:44.000000000Z"`},
		{"nanoseconds", `"2019-04-09T16:38:44.123456789Z"`, `"2019-04-09T16:38:44.123456789Z"`},
		{"zeros beyond them", `"2019-04-09T16:38:44.1234567890000Z"`, `"2019-04-09T16:38:44.123456789Z"`},
		{"finer", `"2019-04-09T16:38:44.1234567891Z"`, `timestamp_precision`},
		{"bare point", `"2019-04-09T16:38:44.Z"`, `timestamp_syntax`},
		{"no seconds", `"2019-04-09T16:38Z"`, `timestamp_syntax`},
		{"24:00:00", `"2019-04-09T24:00:00Z"`, `timestamp_syntax`},
		{"leap second", `"2016-12-31T23:59:60Z"`, `timestamp_syntax`},
		{"29 February", `"2020-02-29T00:00:00Z"`, `"2020-02-29T00:00:00.000000000Z"`},
		{"no 29 February", `"2019-02-29T00:00:00Z"`, `timestamp_syntax`},
		{"no 31 April", `"2019-04-31T00:00:00Z"`, `timestamp_syntax`},
		{"month 0", `"2019-00-10T00:00:00Z"`, `timestamp_syntax`},
		{"year 0", `"0000-01-10T00:00:00Z"`, `timestamp_syntax`},
		{"first instant", `"0001-01-01T00:00:00Z"`, `"0001-01-01T00:00:00.000000000Z"`},
		{"before it by offset", `"0001-01-01T00:00:00+00:01"`, `timestamp_out_of_range`},
		{"after the last by offset", `"9999-12-31T23:59:59-00:01"`, `timestamp_out_of_range`},
		{"offset of a day", `"2019-04-09T16:38:44+24:00"`, `timestamp_syntax`},
		{"offset minutes", `"2019-04-09T16:38:44+01:60"`, `timestamp_syntax`},
		{"letters", `"2019-04-09T16:38:4xZ"`, `timestamp_syntax`},
		{"trailing text", `"2019-04-09T16:38:44Z "`, `timestamp_syntax`},
		{"empty", `""`, `timestamp_syntax`},
		{"number", `1453420800`, `type`},
		{"boolean", `true`, `type`},
	})
	runValues(t, pipeline.Field{Type: "timestamp", Zone: "Europe/Berlin"}, []valueCase{
		{"declared zone", `"2019-04-09T16:38:44"`, `"2019-04-09T14:38:44.000000000Z"`},
		{"winter", `"2019-01-09T16:38:44.5"`, `"2019-01-09T15:38:44.500000000Z"`},
		{"an offset beats the zone", `"2019-04-09T16:38:44Z"`, `"2019-04-09T16:38:44.000000000Z"`},
		{"skipped by the clocks", `"2019-03-31T02:30:00"`, `timestamp_syntax`},
		{"last before the gap", `"2019-03-31T01:59:59"`, `"2019-03-31T00:59:59.000000000Z"`},
		{"first behind the gap", `"2019-03-31T03:00:00"`, `"2019-03-31T01:00:00.000000000Z"`},
		{"shown twice: the first", `"2019-10-27T02:30:00"`, `"2019-10-27T00:30:00.000000000Z"`},
		{"behind it", `"2019-10-27T03:00:00"`, `"2019-10-27T02:00:00.000000000Z"`},
	})
	runValues(t, pipeline.Field{Type: "timestamp", Layout: "2006-01-02 15:04:05Z07:00"}, []valueCase{
		{"zeros beyond nanoseconds", `"2019-04-09 16:38:44.1234567890000Z"`, `"2019-04-09T16:38:44.123456789Z"`},
		{"finer than nanoseconds", `"2019-04-09 16:38:44.12345678999999Z"`, `timestamp_precision`},
		{"finer, after a comma", `"2019-04-09 16:38:44,12345678999999Z"`, `timestamp_precision`},
		{"offset of more than a day", `"2019-04-09 16:38:44+24:60"`, `timestamp_syntax`},
		{"space by layout", `"2019-04-09 16:38:44Z"`, `"2019-04-09T16:38:44.000000000Z"`},
		{"offset by layout", `"2019-04-09 16:38:44+02:00"`, `"2019-04-09T14:38:44.000000000Z"`},
		{"RFC 3339 is another layout", `"2019-04-09T16:38:44Z"`, `timestamp_syntax`},
		{"number", `1`, `type`},
	})
	runValues(t, pipeline.Field{Type: "timestamp", Layout: "02.01.2006 15:04", Zone: "Europe/Madrid"}, []valueCase{
		{"zone for a layout", `"09.04.2019 16:38"`, `"2019-04-09T14:38:00.000000000Z"`},
		{"no such day", `"31.02.2019 16:38"`, `timestamp_syntax`},
	})
	runValues(t, pipeline.Field{Type: "timestamp", Min: new("2000-01-01T00:00:00Z"), Max: new("2030-01-01T01:00:00+01:00")}, []valueCase{
		{"first", `"2000-01-01T00:00:00Z"`, `"2000-01-01T00:00:00.000000000Z"`},
		{"before", `"1999-12-31T23:59:59.999999999Z"`, `timestamp_out_of_range`},
		{"last", `"2030-01-01T00:00:00Z"`, `"2030-01-01T00:00:00.000000000Z"`},
		{"after", `"2030-01-01T00:00:00.000000001Z"`, `timestamp_out_of_range`},
	})
}

// TestEpoch: the unit is the contract's; a number is never read by its size.
func TestEpoch(t *testing.T) {
	runValues(t, pipeline.Field{Type: "timestamp", Unit: "s"}, []valueCase{
		{"seconds", `1453420800`, `"2016-01-22T00:00:00.000000000Z"`},
		{"seconds later", `1453424400`, `"2016-01-22T01:00:00.000000000Z"`},
		{"milliseconds where seconds are due", `1453424400000`, `timestamp_out_of_range`},
		{"string", `"1453420800"`, `"2016-01-22T00:00:00.000000000Z"`},
		{"point zero", `1453424400.0`, `"2016-01-22T01:00:00.000000000Z"`},
		{"fraction", `1453424400.123456789`, `"2016-01-22T01:00:00.123456789Z"`},
		{"finer", `1453424400.1234567891`, `timestamp_precision`},
		{"finer than anything", `1e-999999999`, `timestamp_precision`},
		{"far beyond", `1e999999999`, `timestamp_out_of_range`},
		{"zero", `0`, `"1970-01-01T00:00:00.000000000Z"`},
		{"minus one", `-1`, `"1969-12-31T23:59:59.000000000Z"`},
		{"minus a fraction", `-0.25`, `"1969-12-31T23:59:59.750000000Z"`},
		{"minus and a fraction", `-1.25`, `"1969-12-31T23:59:58.750000000Z"`},
		{"exponent", `1.4534208e9`, `"2016-01-22T00:00:00.000000000Z"`},
		{"first instant", `-62135596800`, `"0001-01-01T00:00:00.000000000Z"`},
		{"before it", `-62135596801`, `timestamp_out_of_range`},
		{"last instant", `253402300799.999999999`, `"9999-12-31T23:59:59.999999999Z"`},
		{"after it", `253402300800`, `timestamp_out_of_range`},
		{"text", `"2016-01-22T00:00:00Z"`, `number_syntax`},
		{"boolean", `true`, `type`},
	})
	runValues(t, pipeline.Field{Type: "timestamp", Unit: "ms"}, []valueCase{
		{"milliseconds", `1459468800000`, `"2016-04-01T00:00:00.000000000Z"`},
		{"string", `"1459468800000"`, `"2016-04-01T00:00:00.000000000Z"`},
		{"seconds where milliseconds are due", `1459468800`, `"1970-01-17T21:24:28.800000000Z"`},
		{"one", `1`, `"1970-01-01T00:00:00.001000000Z"`},
		{"fraction", `1.000001`, `"1970-01-01T00:00:00.001000001Z"`},
	})
	runValues(t, pipeline.Field{Type: "timestamp", Unit: "ms", Min: new("2000-01-01T00:00:00Z")}, []valueCase{
		{"seconds caught by the declared range", `1459468800`, `timestamp_out_of_range`},
	})
	runValues(t, pipeline.Field{Type: "timestamp", Unit: "us"}, []valueCase{
		{"microseconds", `1459468800000001`, `"2016-04-01T00:00:00.000001000Z"`},
		{"finer", `0.0001`, `timestamp_precision`},
	})
}

func TestDate(t *testing.T) {
	runValues(t, pipeline.Field{Type: "date", Min: new("2000-01-01")}, []valueCase{
		{"date", `"2019-04-09"`, `"2019-04-09"`}, {"leap day", `"2000-02-29"`, `"2000-02-29"`},
		{"no leap day", `"2100-02-29"`, `date_syntax`}, {"short", `"2019-4-9"`, `date_syntax`}, {"timestamp", `"2019-04-09T00:00:00Z"`, `date_syntax`},
		{"below", `"1999-12-31"`, `min`}, {"number", `20190409`, `type`}, {"empty", `""`, `date_syntax`},
	})
	runValues(t, pipeline.Field{Type: "date", Layout: "02/01/2006"}, []valueCase{
		{"layout", `"09/04/2019"`, `"2019-04-09"`}, {"other", `"2019-04-09"`, `date_syntax`}, {"year 0", `"09/04/0000"`, `date_syntax`},
	})
}

func TestDocument(t *testing.T) {
	nested := func(n int, leaf string) string { return strings.Repeat("[", n) + leaf + strings.Repeat("]", n) }
	runValues(t, pipeline.Field{Type: "document"}, []valueCase{
		{"names sorted as bytes", `{"b":1,"a":2,"B":3,"é":4,"":5}`, `bad_name`},
		{"sorted", `{"b":1,"a":2,"B":3,"é":4,"ab":{"d":1,"c":2}}`, `{"B":3,"a":2,"ab":{"c":2,"d":1},"b":1,"é":4}`},
		{"sorted by what the name is, not how it is written", `{"b":1,"\u0061":2}`, `{"a":2,"b":1}`},
		{"sorted inside arrays", `[{"b":{"z":1,"y":[]},"a":1},{}]`, `[{"a":1,"b":{"y":[],"z":1}},{}]`},
		{"numbers", `[1.50,-0,1e2,9007199254740993]`, `[1.5,0,100,9007199254740993]`},
		{"nulls kept", `{"a":null,"b":[null,true,false]}`, `{"a":null,"b":[null,true,false]}`},
		{"white space", " { \"a\" :\n[ 1 ,\t2 ] } ", `{"a":[1,2]}`},
		{"strings", `["\u00e9\/", "\u0000", "\"", ""]`, `["é/","\u0000","\"",""]`},
		{"scalar", `1.0`, `1`},
		{"name twice", `{"a":1,"b":2,"a":3}`, `duplicate_name`},
		{"name twice, written otherwise", `{"a":1,"\u0061":3}`, `duplicate_name`},
		{"name twice, deep", `[{"x":{"a":1,"a":1}}]`, `duplicate_name`},
		{"case variants are two names", `{"id":1,"ID":2}`, `{"ID":2,"id":1}`},
		{"long number", `[` + `1` + nines38 + `]`, `number_too_long`},
		{"huge number", `{"a":1e126}`, `number_out_of_range`},
		{"half a surrogate pair", `["\ud800"]`, `bad_text`},
		{"half a surrogate pair in a name", `{"\ud800":1}`, `bad_name`},
		{"32 levels", nested(31, `"x"`), nested(31, `"x"`)},
		{"32 levels, the last an empty list", nested(32, ``), nested(32, ``)},
		{"33 levels", nested(32, `1`), `too_deep`},
		{"33 levels of objects", strings.Repeat(`{"a":`, 33) + `1` + strings.Repeat(`}`, 33), `too_deep`},
		{"900 levels", nested(900, `1`), `too_deep`},
		{"null", `null`, `-`},
	})
}

func TestList(t *testing.T) {
	runValues(t, pipeline.Field{Type: "list", Items: "integer", Min: new("0"), MinLen: new(1), MaxLen: new(3)}, []valueCase{
		{"elements", `[ 1 , "2", 3.0 ]`, `[1,2,3]`},
		{"empty", `[]`, `too_short`},
		{"too many, one bad", `[1,2,-3,4]`, `min too_long`},
		{"null element", `[1,null]`, `type`},
		{"nested", `[[1]]`, `type`},
		{"every bad element", `["x",1.5]`, `number_syntax not_integer`},
		{"no list", `1`, `type`},
		{"null", `null`, `-`},
	})
	runValues(t, pipeline.Field{Type: "list", Clean: []string{"trim", "lower"}, Enum: []string{"a", "b,]"}}, []valueCase{
		{"texts", `[" A","b,]"]`, `["a","b,]"]`}, {"enum", `["c"]`, `enum`}, {"empty", `[]`, `[]`},
	})
	runValues(t, pipeline.Field{Type: "list", Items: "timestamp", Unit: "s"}, []valueCase{
		{"timestamps", `[0]`, `["1970-01-01T00:00:00.000000000Z"]`},
	})
}
