// Package contract says what a record must be. [Compile] turns the contract of a pipeline file into a [Contract]; a
// [Checker] takes raw records and gives for each either the canonical valid line, which every store keeps alike, or a
// quarantine line with the raw record and every reason. Both are functions of the record, its place and the contract
// alone: no clock, no randomness, no floating point, so the same part gives the same bytes wherever and whenever it is
// transformed.
//
// The rules, one for each doubtful case:
//
//   - Names are compared byte for byte, after unescaping: `ID` and `id` are two names. A name that stands twice at the top
//     of the record, on the way to a field, or in a document to keep is a fault (duplicate_name).
//   - null is the same as absent: the default or const applies, else the column is left out. With `nullable: false`, and in
//     a required field, null is a fault; with `required: true, nullable: true` the member must be there and may be null. An
//     empty string is a string: it is kept in a string column and is no number, boolean, time or date in any other.
//   - Spaces are never trimmed unless `clean` says so. A string is a number only if its whole text is a JSON number: no
//     plus sign, no leading zeros (`0012` is a label, not 12), no separators. `decimal_comma` and `thousands` say how texts
//     of a field write numbers instead: with `thousands`, groups of three digits are all set off or none. JSON numbers,
//     and the values in the contract itself, keep the point.
//   - integer takes 9767.0, 1e2 and "12", and gives plain digits, at most 38. decimal gives at most 38 significant digits
//     within DynamoDB's range, without exponent or superfluous zeros; -0 is 0. A number in a string column becomes its
//     plain digits, however many it has (an exponent may add at most some 130 zeros).
//   - boolean takes true and false, 1 and 0, and the strings true false t f yes no y n on off 1 0 in any case.
//   - timestamp takes RFC 3339, strictly: a T (a space only by layout), seconds, optionally a fraction after a point, then
//     Z, ±hh:mm or ±hhmm; without an offset the declared zone, else timestamp_no_zone. Epoch numbers have the declared
//     unit and are never guessed from their size. 24:00:00 and second 60 are faults: moving them would be a guess.
//     Digits beyond nanoseconds are a fault unless they are zeros. In a zone, a time of day that a change of clocks skips
//     is a fault; one that it repeats is the first of the two. `min` and `max` are the plausible range; without them it is
//     the years 1 to 9999, for no other range is right for both a birthday and an event.
//   - A zone's rules come from the machine's zone files where it has any (those that ZONEINFO names, or the system's), else
//     from the copy linked in. Two machines whose files know different rules for a zone and a date differ there.
//   - A timestamp is stored in UTC at a fixed width of 30 bytes, 2006-01-02T15:04:05.000000000Z, years 1 to 9999, so that
//     texts compare as instants.
//   - document keeps the value native: numbers canonical, names sorted, nulls kept, at most 32 levels counted from the
//     column's own value, which is where DynamoDB stops.
//   - const: a record without the field gets the value, one with another value is refused.
//   - In a list, enum, const, min, max, pattern and clean speak of the elements, min_length and max_length of their
//     number; in a string column lengths count characters.
//   - A key part is neither empty nor holds U+0000; delimiters in it are escaped, so no two lists of parts are one key.
//   - An undeclared member is one that no field's path begins with. `extra: keep` keeps it as a document, unless its name
//     is a column's or begins with `_`.
//   - A record that the delete rule marks is checked for key and version alone and stored with those columns.
//   - A name longer than 200 bytes is cut in reasons; the raw record has it whole. A list has each reason once, whatever the
//     number of its elements at fault; undeclared members have at most 1,000 reasons, and one that says there are more.
//
// A Checker also counts how the records differ from what the contract declares: [Checker.Drift].
package contract

// EngineVersion numbers this code. Raise it when the output bytes change for any input: it is part of every rank and of
// the keys of the objects in the stage bucket. It stays 1 until the first release.
const EngineVersion = 1

// The reason codes. What each means stands in the table of [Codes].
const (
	CodeSyntax             = "json_syntax"
	CodeRecordType         = "record_type"
	CodeDuplicateName      = "duplicate_name"
	CodeBadName            = "bad_name"
	CodeExtra              = "extra"
	CodeMissing            = "missing"
	CodeNull               = "null"
	CodeType               = "type"
	CodeBadText            = "bad_text"
	CodeNumberSyntax       = "number_syntax"
	CodeNumberTooLong      = "number_too_long"
	CodeNumberOutOfRange   = "number_out_of_range"
	CodeNotInteger         = "not_integer"
	CodeBooleanSyntax      = "boolean_syntax"
	CodeTimestampSyntax    = "timestamp_syntax"
	CodeTimestampNoZone    = "timestamp_no_zone"
	CodeTimestampPrecision = "timestamp_precision"
	CodeTimestampRange     = "timestamp_out_of_range"
	CodeDateSyntax         = "date_syntax"
	CodeTooDeep            = "too_deep"
	CodeConst              = "const"
	CodeEnum               = "enum"
	CodeMin                = "min"
	CodeMax                = "max"
	CodeTooShort           = "too_short"
	CodeTooLong            = "too_long"
	CodePattern            = "pattern"
	CodeKeyEmpty           = "key_empty"
	CodeKeyType            = "key_type"
	CodeKeyTooLong         = "key_too_long"
	CodeItemTooLarge       = "item_too_large"
	CodeTooManyMembers     = "too_many_members"
)

// Code is a reason code's row in the table.
type Code struct {
	Code    string
	Meaning string // one sentence
}

// Codes returns the closed list of reason codes in the order of the documentation.
func Codes() []Code {
	return []Code{
		{CodeSyntax, "The record is not valid JSON."},
		{CodeRecordType, "The record is not a JSON object."},
		{CodeDuplicateName, "A name that is used stands twice in one object."},
		{CodeBadName, "A member to keep has a name that is empty, over 65,535 bytes, or not valid Unicode."},
		{CodeExtra, "The record has a member the contract does not declare (extra: quarantine)."},
		{CodeMissing, "A required field is absent."},
		{CodeNull, "A required field is null."},
		{CodeType, "The JSON value is of a type the field cannot take."},
		{CodeBadText, "A string is not valid Unicode (half a surrogate pair, bytes that are not UTF-8), or a key part holds U+0000."},
		{CodeNumberSyntax, "The text is not a number as JSON writes it."},
		{CodeNumberTooLong, "The number has more than 38 digits."},
		{CodeNumberOutOfRange, "The number's magnitude is outside 1E-130 to 9.99E+125."},
		{CodeNotInteger, "The number has a fraction."},
		{CodeBooleanSyntax, "The value is not one of the accepted spellings of true and false."},
		{CodeTimestampSyntax, "The text is not a timestamp in the declared form, or no such day or time of day exists."},
		{CodeTimestampNoZone, "The timestamp has no offset and the contract declares no zone."},
		{CodeTimestampPrecision, "The timestamp is finer than a nanosecond."},
		{CodeTimestampRange, "The timestamp is outside the years 1 to 9999, or before min or after max."},
		{CodeDateSyntax, "The text is not a date in the declared form, or no such day exists."},
		{CodeTooDeep, "The value is nested deeper than 32 levels."},
		{CodeConst, "The value differs from the declared const."},
		{CodeEnum, "The value is not one of the declared enum."},
		{CodeMin, "The value is below min."},
		{CodeMax, "The value is above max."},
		{CodeTooShort, "The text has fewer characters, or the list fewer elements, than min_length."},
		{CodeTooLong, "The text has more characters, or the list more elements, than max_length."},
		{CodePattern, "The text does not match the pattern."},
		{CodeKeyEmpty, "A key part is absent, null or empty."},
		{CodeKeyType, "A key part is of a JSON type its field cannot take."},
		{CodeKeyTooLong, "The key is over 2,048 bytes (partition) or 1,024 bytes (sort)."},
		{CodeItemTooLarge, "The item, or a value alone, is over 409,600 bytes by DynamoDB's size rules."},
		{CodeTooManyMembers, "The record has more than 65,536 members the contract does not declare, beside the first 1,000 that the part has."},
	}
}
