package pipeline_test

// faultCases has every kind of fault once, with its exact place.
func faultCases() []faultCase {
	return []faultCase{
		{"unknown key with a near name", "every: 1h", "evry: 1h",
			"2:1: evry: there is no such key; write every instead"},
		{"unknown key that belongs elsewhere", "checks: {min_records: 1}", "attempts: 3",
			"23:1: attempts: there is no such key; write it as source.retry.attempts instead"},
		{"unknown key that belongs into the style", "next: meta.next}}", "next: meta.next}, max_pages: 3}",
			"9:56: source.paginate.max_pages: there is no such key; write it as source.paginate.cursor.max_pages instead"},
		{"unknown key of nothing near", "checks: {min_records: 1}", "frobnicate: 1",
			"23:1: frobnicate: there is no such key; write one of pipeline, every, lag, lookback, source, contract, quarantine, checks, target instead"},
		{"two near keys", "every: 1h", `every: 1h
evry: 2h`,
			"3:1: evry: there is no such key; write every instead"},
		{"duplicate key", "every: 1h", `every: 1h
every: 2h`,
			"3:1: every: the key stands here for the second time, first at 2:1; write it once instead"},
		{"duplicate column", "    day: {type: date}", `    day: {type: date}
    shop: {type: date}`,
			"20:5: contract.fields.shop: the key stands here for the second time, first at 15:5; write it once instead"},
		{"missing key", `every: 1h
`, "",
			"1:1: every: the key is missing; write every: a length like 15m, 1h or 1d"},
		{"missing key in a mapping", "{table: orders}", "{}",
			"24:1: target.table: the key is missing; write table: a name of 3 to 255 letters, digits, _ . and -, like orders"},
		{"missing mapping", `target: {table: orders}
`, "",
			"1:1: target: the key is missing; write target: a mapping with the keys table, partition, sort, atomic"},
		{"mapping where text is meant", "records: data", "records: {path: data}",
			`8:12: source.records: a single value must stand here, not a mapping; write names joined by dots, like meta.next or items[0].id (\. is a dot within a name) instead`},
		{"list where text is meant", "records: data", "records: [data]",
			`8:12: source.records: a single value must stand here, not a list; write names joined by dots, like meta.next or items[0].id (\. is a dot within a name) instead`},
		{"text where a mapping is meant", "target: {table: orders}", "target: orders",
			"24:9: target: a mapping must stand here, not a single value; write a mapping with the keys table, partition, sort, atomic instead"},
		{"text where a list is meant", "key: [shop, id]", "key: shop",
			"12:8: contract.key: a list must stand here, not a single value; write a list, each element some text instead"},
		{"nothing where text is meant", "records: data", "records:",
			`8:11: source.records: the value is missing; write names joined by dots, like meta.next or items[0].id (\. is a dot within a name) instead`},
		{"nothing where a mapping is meant", "target: {table: orders}", "target:",
			"24:9: target: a mapping must stand here, not nothing; write a mapping with the keys table, partition, sort, atomic instead"},
		{"empty list", "key: [shop, id]", "key: []",
			"12:8: contract.key: the list is empty; write at least one element instead"},
		{"list with a doublet", "key: [shop, id]", "key: [shop, id, shop]",
			`12:19: contract.key[2]: "shop" stands in the list twice; write it once instead`},
		{"list in a list", "key: [shop, id]", "key: [[shop], id]",
			"12:9: contract.key[0]: a single value must stand here, not a list; write some text instead"},
		{"quoted number", "min_records: 1", `min_records: "1"`,
			`23:23: checks.min_records: "1" is no whole number; write a whole number from 0 to 1000000000000, without quotes, instead`},
		{"number with underscores", "min_records: 1", "min_records: 1_000",
			`23:23: checks.min_records: "1_000" is no whole number; write a whole number from 0 to 1000000000000, without quotes, instead`},
		{"negative number", "min_records: 1", "min_records: -1",
			"23:23: checks.min_records: -1 is out of range; write a whole number from 0 to 1000000000000, without quotes, instead"},
		{"fraction", "min_records: 1", "min_records: 1.5",
			`23:23: checks.min_records: "1.5" is no whole number; write a whole number from 0 to 1000000000000, without quotes, instead`},
		{"huge number", "min_records: 1", "min_records: 123456789012345678901234567890",
			`23:23: checks.min_records: "123456789012345678901234567890" is no whole number; write a whole number from 0 to 1000000000000, without quotes, instead`},
		{"quoted boolean", "required: true", `required: "true"`,
			`16:34: contract.fields.id.required: "true" is no boolean; write true or false, without quotes, instead`},
		{"boolean of another language", "required: true", "required: yes",
			`16:34: contract.fields.id.required: "yes" is no boolean; write true or false, without quotes, instead`},
		{"ratio over 1", "min_records: 1", "max_duplicate_ratio: 1.5",
			`23:31: checks.max_duplicate_ratio: "1.5" is no ratio; write a number from 0 to 1, like 0.05, without quotes, instead`},
		{"ratio with an exponent", "min_records: 1", "max_duplicate_ratio: 5e-1",
			`23:31: checks.max_duplicate_ratio: "5e-1" is no ratio; write a number from 0 to 1, like 0.05, without quotes, instead`},
		{"bad slot length", "every: 1h", "every: 7m",
			`2:8: every: "7m" is not a slot length: want minutes that divide an hour (1m 2m 3m 4m 5m 6m 10m 12m 15m 20m 30m), hours that divide a day (1h 2h 3h 4h 6h 8h 12h), 1d or 7d; write a length like 15m, 1h or 1d instead`},
		{"bad lag", "every: 1h", `every: 1h
lag: 90s`,
			`3:6: lag: "90s" is not whole minutes; write whole minutes like 5m, 2h or 1d instead`},
		{"lag of decades", "every: 1h", `every: 1h
lag: 400000h`,
			`3:6: lag: "400000h" is out of range: at most 31d; write whole minutes like 5m, 2h or 1d instead`},
		{"lookback of years", "every: 1h", `every: 1h
lookback: 367d`,
			`3:11: lookback: "367d" is out of range: at most 366d; write whole minutes like 5m, 2h or 1d instead`},
		{"max_age of decades", "min_records: 1", "max_age: 400000h",
			`23:19: checks.max_age: "400000h" is out of range: at most 3660d; write whole minutes like 5m, 2h or 1d instead`},
		{"bad duration", "base: 1s", "base: 1 second",
			`10:17: source.retry.base: "1 second" is no duration; write a duration like 500ms, 5s or 6h instead`},
		{"zero duration", "base: 1s", "base: 0s",
			`10:17: source.retry.base: "0s" is out of range: at least 1ms and at most 168h; write a duration like 500ms, 5s or 6h instead`},
		{"bad enum with a near name", "type: date", "type: dat",
			`19:17: contract.fields.day.type: "dat" is not known; write date instead`},
		{"bad enum", "type: date", "type: float",
			`19:17: contract.fields.day.type: "float" is not known; write one of string, integer, decimal, boolean, timestamp, date, document, list instead`},
		{"bad method", "records: data", "method: DELETE",
			`8:11: source.method: "DELETE" is not known; write one of GET, POST instead`},
		{"bad pipeline name", "pipeline: orders", "pipeline: Orders",
			`1:11: pipeline: "Orders" is no pipeline name; write a lower-case letter and up to 62 of a-z 0-9 _ and -, like orders instead`},
		{"reserved pipeline name", "pipeline: orders", "pipeline: onceload-orders",
			`1:11: pipeline: "onceload-orders" begins with onceload, which is reserved; write another name instead`},
		{"reserved table", "table: orders", "table: ledger",
			`24:17: target.table: "ledger" is reserved, like all names that begin with onceload or sqlite; write another name instead`},
		{"reserved table prefix", "table: orders", "table: Onceload_x",
			`24:17: target.table: "Onceload_x" is reserved, like all names that begin with onceload or sqlite; write another name instead`},
		{"bad table", "table: orders", "table: my orders",
			`24:17: target.table: "my orders" is no table name; write a name of 3 to 255 letters, digits, _ . and -, like orders instead`},
		{"column that begins with _", "    day: {type: date}", "    _day: {type: date}",
			"19:5: contract.fields._day: a name that begins with _ is onceload's own; write another name, and from: _day instead"},
		{"reserved column", "    day: {type: date}", "    onceload: {type: date}",
			"19:5: contract.fields.onceload: the name onceload is reserved; write another name instead"},
		{"empty column name", "    day: {type: date}", `    "": {type: date}`,
			"19:5: contract.fields.: a column needs a name; write another name instead"},
		{"no columns", `  fields:
    shop: {type: string, const: eu}
    id: {type: string, required: true}
    total: {type: decimal, min: 0}
    tags: {type: list, items: string}
    day: {type: date}
    paid: {type: boolean}
    items: {type: document}
    updated: {type: timestamp}
`, `  fields: {}
`,
			"14:11: contract.fields: the mapping is empty; write a mapping of names instead"},
		{"two auth schemes", "auth: {bearer: {secret: token}}", "auth: {bearer: {secret: token}, basic: {user: u, secret: token}}",
			"7:35: source.auth.basic: there is bearer already, and only one can be; write one of the two instead"},
		{"no auth scheme", "auth: {bearer: {secret: token}}", "auth: {}",
			"7:9: source.auth: the mapping is empty; write a mapping with one of bearer, header, query, basic, oauth2 instead"},
		{"secret instead of its name", "secret: token", `secret: "hunter2 $ecret"`,
			"7:27: source.auth.bearer.secret: the text is not the name of a secret; write the name of a secret, like orders-api-token, never the secret itself, instead"},
		{"two paging styles", "next: meta.next}}", "next: meta.next}, link: {}}",
			"9:56: source.paginate.link: there is cursor already, and only one can be; write one of the two instead"},
		{"credentials among headers", "Accept: application/json", "Authorization: Bearer hunter2",
			"6:13: source.headers.Authorization: the header carries credentials; write them under source.auth instead"},
		{"header of the client's own", "Accept: application/json", "Content-Length: 3",
			"6:13: source.headers.Content-Length: the header is set by onceload itself; write the file without it instead"},
		{"header twice", "Accept: application/json", "Accept: application/json, accept: text/html",
			"6:39: source.headers.accept: the header is there already in other letters; write it once instead"},
		{"bad header name", "Accept: application/json", `"Ac cept": x`,
			"6:13: source.headers.Ac cept: the text is no header name; write another name instead"},
		{"header with a line break", "Accept: application/json", `Accept: "a\r\nb"`,
			"6:21: source.headers.Accept: the text has a line break; write it in one line instead"},
		{"header of auth too", `headers: {Accept: application/json}
  auth: {bearer: {secret: token}}`, `headers: {X-Key: a}
  auth: {header: {name: x-key, secret: token}}`,
			"7:25: source.auth.header.name: source.headers sets x-key too; write it under source.auth alone instead"},
		{"auth parameter in query", "auth: {bearer: {secret: token}}", "auth: {query: {name: limit, secret: token}}",
			`7:24: source.auth.query.name: source.query sets "limit" too; write it in one place instead`},
		{"auth parameter of paging", "auth: {bearer: {secret: token}}", "auth: {query: {name: cursor, secret: token}}",
			`7:24: source.auth.query.name: source.paginate sets "cursor" too; write another parameter instead`},
		{"paging parameter in query", "{cursor: {param: cursor, next: meta.next}}", "{offset: {param: from, limit_param: limit, limit: 5}}",
			`9:30: source.paginate.offset.param: source.query sets "from" too; write it in one place instead
9:49: source.paginate.offset.limit_param: source.query sets "limit" too; write it in one place instead`},
		{"paging parameter twice", "{cursor: {param: cursor, next: meta.next}}", "{offset: {param: x, limit_param: x, limit: 5}}",
			`9:46: source.paginate.offset.limit_param: "x" carries the position already; write two parameters instead`},
		{"size parameter without size", "{cursor: {param: cursor, next: meta.next}}", "{page: {param: page, size_param: per}}",
			"9:34: source.paginate.page.size_param: the size of a page is missing; write size with it instead"},
		{"short page of unknown size", "next: meta.next}}", "next: meta.next, stop_on_short: true}}",
			"9:55: source.paginate.cursor.stop_on_short: nothing says how many records a full page has; write size with it instead"},
		{"body without POST", "records: data", `records: data
  body: '{}'`,
			"9:3: source.body: a GET has no body; write method: POST with it instead"},
		{"idempotency header without POST", "records: data", `records: data
  idempotency_header: Idempotency-Key`,
			"9:3: source.idempotency_header: a GET may be tried again without a key; write method: POST with it instead"},
		{"body as a mapping", "records: data", `records: data
  method: POST
  body: {"a": 1}`,
			`10:9: source.body: a single value must stand here, not a mapping; write JSON text in single quotes or after |, with placeholders like "{window.start}" instead`},
		{"body that is not JSON", "records: data", `records: data
  method: POST
  body: "{a: 1}"`,
			`10:9: source.body: the text is not valid JSON; write JSON text in single quotes or after |, with placeholders like "{window.start}" instead`},
		{"body that is no object, with paging", "records: data", `records: data
  method: POST
  body: "[1]"`,
			`10:9: source.body: source.paginate.cursor puts "cursor" into the body, which is no object; write a JSON object instead`},
		{"bad placeholder in a body", "records: data", `records: data
  method: POST
  body: '{"a": "{windw.start}"}'`,
			`10:9: source.body: {windw.start} is no placeholder; write JSON text in single quotes or after |, with placeholders like "{window.start}" instead`},
		{"ftp", "https://api.example.com/v1/orders", "ftp://api.example.com/v1/orders",
			`4:8: source.url: the scheme "ftp" is neither https nor http; write scheme, host and path, like https://api.example.com/v1/orders instead`},
		{"URL without scheme", "https://api.example.com/v1/orders", "api.example.com/v1/orders",
			`4:8: source.url: the scheme "" is neither https nor http; write scheme, host and path, like https://api.example.com/v1/orders instead`},
		{"URL without host", "https://api.example.com/v1/orders", "https:///v1/orders",
			"4:8: source.url: the host is missing; write scheme, host and path, like https://api.example.com/v1/orders instead"},
		{"URL with user and password", "https://api.example.com/v1/orders", "https://u:hunter2@api.example.com/v1/orders",
			"4:8: source.url: the URL has a user or password; write them under source.auth instead"},
		{"URL with a query", "https://api.example.com/v1/orders", "https://api.example.com/v1/orders?key=hunter2",
			"4:8: source.url: the URL has a query; write it under source.query instead"},
		{"URL with a fragment", "https://api.example.com/v1/orders", "https://api.example.com/v1/orders#top",
			"4:8: source.url: the URL has a fragment, which is never sent; write it up to the # instead"},
		{"URL with a placeholder", "https://api.example.com/v1/orders", `"https://api.example.com/v1/{slot}"`,
			"4:8: source.url: the URL has braces, but placeholders are filled in query, headers and body only; write it without braces instead"},
		{"URL that is none", "https://api.example.com/v1/orders", `"https://api.example.com:hunter2/"`,
			"4:8: source.url: the text is no URL; write scheme, host and path, like https://api.example.com/v1/orders instead"},
		{"bad placeholder", "{window.start}", "{window.begin}",
			"5:17: source.query.from: {window.begin} is no placeholder; write {window.start}, {window.end} or {slot}, each with :unix, :unix_ms or :date if wanted ({{name}} is the text {name}), instead"},
		{"bad placeholder without a dot", "{window.start}", "{start}",
			"5:17: source.query.from: {start} is no placeholder; write {window.start}, {window.end} or {slot}, each with :unix, :unix_ms or :date if wanted ({{name}} is the text {name}), instead"},
		{"bad placeholder format", "{window.start}", "{window.start:rfc822}",
			"5:17: source.query.from: {window.start:rfc822} has a format that is not unix, unix_ms or date; write {window.start}, {window.end} or {slot}, each with :unix, :unix_ms or :date if wanted ({{name}} is the text {name}), instead"},
		{"empty placeholder format", "{window.start}", "{window.start:}",
			"5:17: source.query.from: {window.start:} has a format that is not unix, unix_ms or date; write {window.start}, {window.end} or {slot}, each with :unix, :unix_ms or :date if wanted ({{name}} is the text {name}), instead"},
		{"placeholder without quotes", `"{window.start}"`, "{window.start}",
			`5:17: source.query.from: a placeholder needs quotes; write "{window.start}" instead`},
		{"bad path", "records: data", "records: data..items",
			`8:12: source.records: path "data..items": a name is missing at position 6; write names joined by dots, like meta.next or items[0].id (\. is a dot within a name) instead`},
		{"bad index in a path", "next: meta.next", `next: "meta[x]"`,
			`9:44: source.paginate.cursor.next: path "meta[x]": want an index like [0] at position 5 (write \[ for a bracket in a name); write names joined by dots, like meta.next or items[0].id (\. is a dot within a name) instead`},
		{"empty path", "next: meta.next", `next: ""`,
			`9:44: source.paginate.cursor.next: is empty; write names joined by dots, like meta.next or items[0].id (\. is a dot within a name) instead`},
		{"@key where no record is", "records: data", `records: "@key"`,
			`8:12: source.records: @key stands for the key of a record, and here is none; write names joined by dots, like meta.next or items[0].id (\. is a dot within a name) instead`},
		{"delete by @key without a column of it", "checks: {min_records: 1}", `  delete: {from: "@key", equals: x}`,
			"23:18: contract.delete.from: only a column from @key says that the records stand in an object; write a column from @key with it instead"},
		{"ndjson with a path", "records: data", `records: data
  ndjson: true`,
			`8:3: source.records: a body of ndjson has no document around its records to look into; write the file without it instead
10:38: source.paginate.cursor.next: a body of ndjson has no document around its records to look into; write the file without it instead`},
		{"ndjson with @key", `  records: data
  paginate: {cursor: {param: cursor, next: meta.next}}
  retry: {base: 1s, cap: 30s}
contract:
  key: [shop, id]
  version: updated
  fields:
    shop: {type: string, const: eu}
    id: {type: string,`, `  ndjson: true
contract:
  key: [shop, id]
  version: updated
  fields:
    shop: {type: string, const: eu}
    id: {type: string, from: "@key",`,
			"14:30: contract.fields.id.from: a line of ndjson has no key; write a path in the record instead"},
		{"pattern that RE2 refuses", "{type: string, const: eu}", `{type: string, pattern: "(?=x)"}`,
			"15:35: contract.fields.shop.pattern: error parsing regexp: invalid or unsupported Perl syntax: `(?=`; write a pattern that Go's regexp package (RE2: no look-around, no back references) accepts instead"},
		{"pattern on a number", "{type: decimal, min: 0}", "{type: decimal, pattern: x}",
			"17:28: contract.fields.total.pattern: a column of type decimal has no pattern; write it for string only instead"},
		{"min on a string", "const: eu", "min: 3",
			"15:26: contract.fields.shop.min: a column of type string has no min; write it for integer, decimal, timestamp, date only instead"},
		{"min on a list of strings", "items: string", "min: 3",
			"18:24: contract.fields.tags.min: a list of string has no min; write it for integer, decimal, timestamp, date only instead"},
		{"enum on a boolean", "{type: boolean}", "{type: boolean, enum: [true]}",
			"20:27: contract.fields.paid.enum: a column of type boolean has no enum; write it for string, integer, decimal, timestamp, date only instead"},
		{"default on a document", "{type: document}", "{type: document, default: x}",
			"21:29: contract.fields.items.default: a column of type document has no default; write it for string, integer, decimal, boolean, timestamp, date only instead"},
		{"clean on a date", "{type: date}", "{type: date, clean: [trim]}",
			"19:23: contract.fields.day.clean: a column of type date has no clean; write it for string only instead"},
		{"unit on a date", "{type: date}", "{type: date, unit: ms}",
			"19:23: contract.fields.day.unit: a column of type date has no unit; write it for timestamp only instead"},
		{"zone on a date", "{type: date}", "{type: date, zone: UTC}",
			"19:23: contract.fields.day.zone: a column of type date has no zone; write it for timestamp only instead"},
		{"items on a string", "const: eu", "items: string",
			"15:26: contract.fields.shop.items: a column of type string has no items; write it for list only instead"},
		{"list of documents", "items: string", "items: document",
			`18:31: contract.fields.tags.items: "document" is not known; write one of string, integer, decimal, boolean, timestamp, date instead`},
		{"const of another type", "{type: decimal, min: 0}", "{type: integer, const: 1.5}",
			`17:35: contract.fields.total.const: "1.5" is no integer; write a plain integer of at most 38 digits instead`},
		{"const that is no boolean", "{type: boolean}", "{type: boolean, const: yes}",
			`20:34: contract.fields.paid.const: "yes" is neither true nor false; write true or false instead`},
		{"const with an enum", "const: eu", "const: eu, enum: [eu]",
			"15:37: contract.fields.shop.enum: a constant has no enum; write const alone instead"},
		{"enum of another type", "{type: decimal, min: 0}", "{type: decimal, enum: [1, x]}",
			`17:38: contract.fields.total.enum[1]: "x" is no decimal; write a plain decimal of at most 38 digits instead`},
		{"default outside enum", "{type: decimal, min: 0}", "{type: decimal, enum: [1, 2], default: 3}",
			"17:51: contract.fields.total.default: the default is none of enum's values; write one of enum's values instead"},
		{"default outside min", "{type: decimal, min: 0}", "{type: decimal, min: 0, default: -1}",
			"17:45: contract.fields.total.default: the default is out of range; write a value within min and max instead"},
		{"default of a required value", "required: true", "required: true, default: x",
			"16:40: contract.fields.id.default: a required value has no default; write one of the two instead"},
		{"min over max", "min: 0", "min: 10, max: 9.99",
			"17:42: contract.fields.total.max: max (9.99) is less than min (10); write at least min instead"},
		{"min of too many digits", "min: 0", "min: 123456789012345678901234567890123456789",
			`17:33: contract.fields.total.min: "123456789012345678901234567890123456789" has more than 38 digits; write a plain decimal of at most 38 digits instead`},
		{"min with an exponent", "min: 0", "min: 1e999999999",
			`17:33: contract.fields.total.min: "1e999999999" is no decimal; write a plain decimal of at most 38 digits instead`},
		{"min that is no date", "{type: date}", "{type: date, min: 2026-02-30}",
			`19:28: contract.fields.day.min: "2026-02-30" is no date; write a date like 2026-11-30 instead`},
		{"min that is no timestamp", "{type: timestamp}", "{type: timestamp, min: 2026-02-01}",
			`22:37: contract.fields.updated.min: "2026-02-01" is no timestamp; write a timestamp like 2026-11-30T10:00:00Z instead`},
		{"min_length over max_length", "const: eu", "min_length: 3, max_length: 2",
			"15:53: contract.fields.shop.max_length: max_length is less than min_length; write at least min_length instead"},
		{"lower and upper", "const: eu", "clean: [lower, upper]",
			"15:33: contract.fields.shop.clean: lower and upper undo each other; write one of them instead"},
		{"unit and layout", "{type: timestamp}", `{type: timestamp, unit: ms, layout: "2006-01-02 15:04:05 -0700"}`,
			"22:42: contract.fields.updated.layout: unit says already how the instant is written; write one of the two instead"},
		{"unit and zone", "{type: timestamp}", "{type: timestamp, unit: ms, zone: UTC}",
			"22:42: contract.fields.updated.zone: a number of ms since 1970 has no zone; write one of the two instead"},
		{"layout without a zone", "{type: timestamp}", `{type: timestamp, layout: "2006-01-02 15:04:05"}`,
			`22:40: contract.fields.updated.layout: "2006-01-02 15:04:05" has no offset; write zone with it, like zone: Europe/Berlin instead`},
		{"layout with an offset and a zone", "{type: timestamp}", `{type: timestamp, layout: "2006-01-02 15:04:05 -0700", zone: UTC}`,
			"22:69: contract.fields.updated.zone: the layout has an offset already; write one of the two instead"},
		{"layout with letters of a zone", "{type: timestamp}", `{type: timestamp, layout: "2006-01-02 MST"}`,
			`22:40: contract.fields.updated.layout: "2006-01-02 MST" has the letters of a zone, which are ambiguous; write -07:00, or zone instead`},
		{"layout without a year", "{type: date}", "{type: date, layout: 02.01.}",
			`19:31: contract.fields.day.layout: "02.01." does not give year, month and day; write a layout like 2006-01-02 15:04:05 instead`},
		{"no time zone", "{type: timestamp}", "{type: timestamp, layout: 2006-01-02, zone: Europe/Berln}",
			`22:58: contract.fields.updated.zone: "Europe/Berln" is no time zone; write an IANA name like Europe/Berlin instead`},
		{"zone of the machine", "{type: timestamp}", "{type: timestamp, zone: Local}",
			`22:38: contract.fields.updated.zone: "Local" is no time zone; write an IANA name like Europe/Berlin instead`},
		{"key that is not declared", "key: [shop, id]", "key: [shop, idd]",
			`12:15: contract.key[1]: "idd" is not among contract.fields; write id instead`},
		{"key of a document", "key: [shop, id]", "key: [shop, items]",
			"12:15: contract.key[1]: a document cannot be part of a key; write a field of another type instead"},
		{"key that may be missing", "{type: string, required: true}", "{type: string, required: false}",
			"16:34: contract.fields.id.required: a field of the key is always required; write true, or leave it out, instead"},
		{"key that may be null", "{type: string, required: true}", "{type: string, required: true, nullable: true}",
			"16:50: contract.fields.id.nullable: a field of the key is never null; write false, or leave it out, instead"},
		{"comma twice", "{type: string, const: eu}", `{type: decimal, decimal_comma: true, thousands: comma}`,
			"15:59: contract.fields.shop.thousands: the comma is the decimal sign already; write another separator, like point, instead"},
		{"point twice", "{type: string, const: eu}", `{type: integer, thousands: point}`,
			"15:38: contract.fields.shop.thousands: the point is the decimal sign already; write decimal_comma: true with it instead"},
		{"separator that is none", "{type: string, const: eu}", `{type: integer, thousands: dot}`,
			`15:38: contract.fields.shop.thousands: "dot" is not known; write one of point, comma, apostrophe, space instead`},
		{"version that is not declared", "version: updated", "version: changed_at",
			`13:12: contract.version: "changed_at" is not among contract.fields; write a name that stands under contract.fields instead`},
		{"version of another type", "version: updated", "version: day",
			`13:12: contract.version: "day" is a date; write a field of type timestamp or integer, or no version, instead`},
		{"max_age without a version", `  version: updated
  fields:
    shop: {type: string, const: eu}
    id: {type: string, required: true}
    total: {type: decimal, min: 0}
    tags: {type: list, items: string}
    day: {type: date}
    paid: {type: boolean}
    items: {type: document}
    updated: {type: timestamp}
checks: {min_records: 1}`, `  fields:
    shop: {type: string, const: eu}
    id: {type: string, required: true}
checks: {max_age: 2d}`,
			"16:10: checks.max_age: without a timestamp as contract.version nothing has an age; write the file without it, or a contract.version of type timestamp, instead"},
		{"max_records under min_records", "min_records: 1", "min_records: 2, max_records: 1",
			"23:39: checks.max_records: max_records is less than min_records; write at least min_records instead"},
		{"revision zero", "key: [shop, id]", `key: [shop, id]
  revision: 0`,
			"13:13: contract.revision: 0 is out of range; write a whole number from 1 to 9999, without quotes, instead"},
		{"cap under base", "base: 1s, cap: 30s", "base: 1m, cap: 30s",
			"10:26: source.retry.cap: cap (30s) is less than base (1m); write a cap of at least base instead"},
		{"base over the default cap", "base: 1s, cap: 30s", "base: 1m",
			"10:17: source.retry.base: cap (30s) is less than base (1m); write a cap of at least base instead"},
		{"max_wait under inline_wait", "base: 1s, cap: 30s", "inline_wait: 3s, max_wait: 2s",
			"10:38: source.retry.max_wait: max_wait (2s) is less than inline_wait (3s); write a max_wait of at least inline_wait instead"},
		{"status of a success", "records: data", `records: data
  cursor_expired: {status: [200]}`,
			"9:29: source.cursor_expired.status[0]: 200 is out of range; write a whole number from 400 to 599, without quotes, instead"},
		{"cursor_expired without status", "records: data", `records: data
  cursor_expired: {body: x}`,
			"9:3: source.cursor_expired.status: the key is missing; write status: a list, each element a whole number from 400 to 599, without quotes"},
		{"host with a scheme", "records: data", `records: data
  allow_hosts: ["https://x.example.com"]`,
			`9:17: source.allow_hosts[0]: "https://x.example.com" is no host in lower case; write a host, or host:port, like files.example.com instead`},
		{"bad rate", "records: data", `records: data
  budget: {rate: 10 per second}`,
			`9:18: source.budget.rate: "10 per second" is no rate; write a rate like 10/s, 100/m or 5000/h instead`},
		{"rate of zero", "records: data", `records: data
  budget: {rate: 0/s}`,
			`9:18: source.budget.rate: "0/s" is no rate above zero; write a rate like 10/s, 100/m or 5000/h instead`},
		{"reserve without a quota", "records: data", `records: data
  budget: {reserve: 5}`,
			"9:21: source.budget.reserve: nothing is left of a daily quota of 0; write fewer requests than daily has instead"},
		{"reserve as big as the quota", "records: data", `records: data
  budget: {daily: 5, reserve: 5}`,
			"9:31: source.budget.reserve: nothing is left of a daily quota of 5; write fewer requests than daily has instead"},
		{"bad budget name", "records: data", `records: data
  budget: {name: Shop API}`,
			`9:18: source.budget.name: "Shop API" is no budget name; write lower-case letters, digits, dots and hyphens, like shop-api instead`},
		{"bad basic user", "{bearer: {secret: token}}", `{basic: {user: "a:b", secret: token}}`,
			"7:24: source.auth.basic.user: the text is no user name; write a user name without colon and control characters instead"},
		{"sort without partition", "{table: orders}", "{table: orders, sort: [id]}",
			"24:25: target.sort: sort without partition; write partition with it instead"},
		{"partition that leaves out a key field", "{table: orders}", "{table: orders, partition: [shop]}",
			`24:25: target.partition: "id" of contract.key is in neither partition nor sort; write every field of contract.key into partition or sort instead`},
		{"partition and sort share a field", "{table: orders}", "{table: orders, partition: [shop, id], sort: [id]}",
			`24:55: target.sort[0]: "id" is in partition already; write it in one of the two instead`},
		{"partition of a field that is no key", "{table: orders}", "{table: orders, partition: [shop, id], sort: [day]}",
			`24:55: target.sort[0]: "day" is not part of contract.key; write fields of contract.key only instead`},
		{"empty partition", "{table: orders}", "{table: orders, partition: []}",
			"24:36: target.partition: the list is empty; write at least one element instead"},
		{"anchor", "{type: date}", "&d {type: date}",
			"19:10: contract.fields.day: an anchor (&) is not supported; write the value at each place instead"},
		{"alias", "    paid: {type: boolean}", "    paid: *d",
			"20:11: contract.fields.paid: an alias (*) is not supported; write the value at each place instead"},
		{"tag", "every: 1h", "every: !!str 1h",
			"2:8: every: a tag (!!str) is not supported; write the value alone instead"},
		{"merge key", "    paid: {type: boolean}", "    paid: {<<: {type: boolean}}",
			`20:5: contract.fields.paid.type: the key is missing; write type: one of string, integer, decimal, boolean, timestamp, date, document, list
20:12: contract.fields.paid: a merge key (<<) is not supported; write the keys themselves instead`},
		{"complex key", "every: 1h", `? every
: 1h`,
			`1:1: every: the key is missing; write every: a length like 15m, 1h or 1d
2:1: a key must be a plain word; write key: value instead`},
		{"second document", "target: {table: orders}", `target: {table: orders}
---
pipeline: other`,
			"26:1: the file has a second document; write each pipeline into a file of its own instead"},
		{"directive", "pipeline: orders", `%YAML 1.2
---
pipeline: orders`,
			"1:1: a YAML directive is not supported; write the file without that line instead"},
		{"broken YAML", "key: [shop, id]", "key: [shop, id",
			"13:3: the YAML is broken: ',' or ']' must be specified"},
		{"tab", "  records: data", "\trecords: data",
			"8:1: the YAML is broken: found character '·' that cannot start any token"},
		{"bad escape", "records: data", `records: "\q"`,
			"8:14: the YAML is broken: found unknown escape character 'q'"},
		{"anchor on a key", "every: 1h", "&e every: 1h",
			"2:1: an anchor (&) is not supported; write the key alone instead"},
		{"alias in a list", "key: [shop, id]", "key: [shop, *x]",
			"12:15: contract.key[1]: an alias (*) is not supported; write the value at each place instead"},
		{"placeholder with a format without quotes", `"{window.start}"`, "{slot: unix}",
			`5:17: source.query.from: a placeholder needs quotes; write "{slot:unix}" instead`},
		{"mapping that is no placeholder", `"{window.start}"`, "{shop: unix}",
			"5:17: source.query.from: a single value must stand here, not a mapping; write {window.start}, {window.end} or {slot}, each with :unix, :unix_ms or :date if wanted ({{name}} is the text {name}), instead"},
		{"idempotency header among headers", "headers: {Accept: application/json}", `method: POST
  idempotency_header: X-Key
  headers: {x-key: a}`,
			"7:23: source.idempotency_header: source.headers sets X-Key too; write it here alone instead"},
		{"max_wait under the default inline_wait", "base: 1s, cap: 30s", "max_wait: 2s",
			"10:21: source.retry.max_wait: max_wait (2s) is less than inline_wait (5s); write a max_wait of at least inline_wait instead"},
		{"inline_wait over the default max_wait", "base: 1s, cap: 30s", "inline_wait: 7h",
			"10:24: source.retry.inline_wait: max_wait (6h) is less than inline_wait (7h); write a max_wait of at least inline_wait instead"},
		{"bad page size", "{cursor: {param: cursor, next: meta.next}}", "{page: {param: page, size: 0, size_param: per}}",
			"9:40: source.paginate.page.size: 0 is out of range; write a whole number from 1 to 1000000, without quotes, instead"},
		{"empty text", "{cursor: {param: cursor, next: meta.next}}", `{page: {param: ""}}`,
			"9:28: source.paginate.page.param: is empty; write some text instead"},
		{"empty parameter name", "limit: 500", `"": 500`,
			"5:35: source.query.: the text is no parameter name; write another name instead"},
		{"column of control characters", "    day: {type: date}", `    "a\tb": {type: date}`,
			"19:5: contract.fields.a·b: a name may not hold control characters; write another name instead"},
		{"column of a long name", "    day: {type: date}", "    xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx: {type: date}",
			"19:5: contract.fields.xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…: a name has at most 255 bytes; write another name instead"},
		{"bad format in a body", "records: data", `records: data
  method: POST
  body: '{"a": "{slot:iso}"}'`,
			`10:9: source.body: {slot:iso} has a format that is not unix, unix_ms or date; write JSON text in single quotes or after |, with placeholders like "{window.start}" instead`},
		{"unknown key far from all", "records: data", `records: data
  yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy: 1`,
			"9:3: source.yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy: there is no such key; write one of url, method, query, headers, body, idempotency_header, auth, records, ndjson, paginate, retry, cursor_expired, error_when, allow_hosts, max_bytes, part_bytes, budget instead"},
		{"order on a text", "const: eu", "default: eu, max: 3",
			"15:39: contract.fields.shop.max: a column of type string has no max; write it for integer, decimal, timestamp, date only instead"},
		{"bad unit and a layout", "{type: timestamp}", `{type: timestamp, unit: sec, layout: "2006-01-02 15:04:05"}`,
			`22:38: contract.fields.updated.unit: "sec" is not known; write one of rfc3339, s, ms, us instead`},
		{"version that may be missing", "{type: timestamp}", "{type: timestamp, required: false}",
			"22:42: contract.fields.updated.required: a field of the version is always required; write true, or leave it out, instead"},
		{"bad key and a partition", "target: {table: orders}", "target: {table: orders, partition: [shop, [id]], sort: [shop]}",
			"24:43: target.partition[1]: a single value must stand here, not a list; write some text instead"},
		{"anchor of nothing", "every: 1h", "every: &x",
			`2:8: every: an anchor (&) is not supported; write the value at each place instead
2:9: every: the value is missing; write a length like 15m, 1h or 1d instead`},
		{"tag of nothing", "every: 1h", "every: !!str",
			"3:1: the YAML is broken: unexpected scalar value"},
		{"anchor of nothing in a list", "key: [shop, id]", "key: [shop, id, &x]",
			"12:21: the YAML is broken: could not find '[' character corresponding to ']'"},
		{"anchor of nothing last", `target: {table: orders}
`, "target: &x",
			"24:9: the YAML is broken: undefined anchor value"},
		{"tag of nothing last", `target: {table: orders}
`, "target: !!map",
			"24:9: target: a mapping must stand here, not nothing; write a mapping with the keys table, partition, sort, atomic instead"},
	}
}
