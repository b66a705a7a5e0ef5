package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/store"
)

// Table runs the checks of [store.Table] on tables that open makes, empty ones.
func Table(t *testing.T, open func(t *testing.T, s store.Schema) store.Table, lacks Lacks) {
	flat := store.Schema{Name: "flat"}
	sorted := store.Schema{Name: "sorted", SortKey: true}
	indexed := store.Schema{Name: "indexed", SortKey: true, Indexes: []store.Index{
		{Name: "by_slot", PK: "pipeline", SK: "slot"}, {Name: "open", PK: "open", SK: "slot"},
	}}
	for _, c := range []struct {
		name   string
		schema store.Schema
		run    func(*testing.T, store.Table)
	}{
		{"round_trip", flat, roundTrip},
		{"numbers", flat, numbers},
		{"sizes", sorted, sizes},
		{"number_sizes", sorted, numberSizes},
		{"refused", indexed, refused},
		{"refused_without_sort_key", flat, refusedFlat},
		{"put_if", sorted, putIf},
		{"put_if_race", flat, putIfRace},
		{"put_higher", flat, putHigher},
		{"put_higher_any_order", sorted, putHigherAnyOrder},
		{"put_higher_race", flat, putHigherRace},
		{"put_higher_1000", sorted, putHigher1000},
		{"put_all_higher", flat, putAllHigher},
		{"put_all_higher_race", flat, putAllHigherRace},
		{"ranks", sorted, ranks},
		{"query", sorted, query},
		{"query_key_order", sorted, queryKeyOrder},
		{"query_large", sorted, queryLarge},
		{"query_index", indexed, queryIndex},
		{"cancelled", indexed, tableCancelled},
	} {
		lacks.run(t, c.name, func(t *testing.T) { c.run(t, open(t, c.schema)) })
	}
}

func key(pk string) store.Key { return store.Key{PK: pk} }

func row(pk, rank, doc string) store.Item {
	return store.Item{Key: store.Key{PK: pk}, Rank: rank, Doc: []byte(doc)}
}

func row2(pk, sk, rank, doc string) store.Item {
	return store.Item{Key: store.Key{PK: pk, SK: sk}, Rank: rank, Doc: []byte(doc)}
}

func text(i store.Item) string { return fmt.Sprintf("%q %q %q %s", i.PK, i.SK, i.Rank, i.Doc) }

func wantItem(t *testing.T, tab store.Table, want store.Item) {
	t.Helper()
	got, err := tab.Get(t.Context(), want.Key)
	if err != nil {
		t.Errorf("get %.40q %.40q: %v", want.PK, want.SK, err)
		return
	}
	if text(got) != text(want) {
		t.Errorf("got  %.300s\nwant %.300s", text(got), text(want))
	}
}

func wantNone(t *testing.T, tab store.Table, k store.Key) {
	t.Helper()
	if _, err := tab.Get(t.Context(), k); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get %.40q %.40q: error %v, want not found", k.PK, k.SK, err)
	}
}

func wantOutcomes(t *testing.T, got []store.Outcome, err error, want ...store.Outcome) {
	t.Helper()
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("outcomes %v, %v; want %v", got, err, want)
	}
}

// nested is a document with an attribute of so many levels, its innermost value on the last.
func nested(levels int, leaf string) string {
	return `{"a":` + strings.Repeat("[", levels-1) + leaf + strings.Repeat("]", levels-1) + `}`
}

func nestedMaps(levels int, leaf string) string {
	return `{"a":` + strings.Repeat(`{"m":`, levels-1) + leaf + strings.Repeat("}", levels-1) + `}`
}

func roundTrip(t *testing.T, tab store.Table) {
	wantNone(t, tab, key("none"))
	for i, c := range []struct{ in, want string }{
		{`{}`, `{}`},
		{`{"s":"text","e":"","t":true,"f":false,"z":null,"n":1}`, `{"e":"","f":false,"n":1,"s":"text","t":true,"z":null}`},
		{"{ \"b\" : [ 1 , \"x\" , null , [ ] , { } ] ,\n\t\"a\" : { \"y\" : { \"k\" : [ { \"z\" : 1 } ] } , \"x\" : 2 } }\r\n",
			`{"a":{"x":2,"y":{"k":[{"z":1}]}},"b":[1,"x",null,[],{}]}`},
		{`{"é":"ñandú 日本 🎉 e\u0301","A":"\u00e9\uD83C\uDF89\u2028\/","<&>":"<&>\u003c"}`,
			"{\"<&>\":\"<&><\",\"A\":\"é🎉\u2028/\",\"é\":\"ñandú 日本 🎉 e\u0301\"}"},
		{`{"q\"\\":"\"\\\b\f\n\r\t\u0001\u001F\u007f"}`, "{\"q\\\"\\\\\":\"\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\"}"},
		{`{"nul":"a\u0000b","z\u0000":1}`, `{"nul":"a\u0000b","z\u0000":1}`},
		{`{"a.b":1,"a b":2,"$x":3,"#y":4,":z":5,"[0]":6,"_batch":"b","size":1,"name":"reserved"}`,
			`{"#y":4,"$x":3,":z":5,"[0]":6,"_batch":"b","a b":2,"a.b":1,"name":"reserved","size":1}`},
		{nested(store.MaxDepth, "1"), nested(store.MaxDepth, "1")},
		{nested(store.MaxDepth, "[]"), nested(store.MaxDepth, "[]")},
		{nestedMaps(store.MaxDepth, "true"), nestedMaps(store.MaxDepth, "true")},
		{nestedMaps(store.MaxDepth, "{}"), nestedMaps(store.MaxDepth, "{}")},
	} {
		k, rank := fmt.Sprintf("k%d", i), ""
		if i%2 == 0 {
			rank = "0001|r"
		}
		doc := []byte(c.in)
		must(t, tab.PutIf(t.Context(), store.Item{Key: key(k), Rank: rank, Doc: doc}, store.Condition{}))
		for j := range doc {
			doc[j] = 'X' // the store keeps a copy
		}
		wantItem(t, tab, row(k, rank, c.want))
	}
	for _, k := range []string{"#", "a#b", "a%23b", "é日🎉", " ", "a b", "'\"\\", "a/b", "\t\n", "%", "_", "a\x7f"} {
		out, err := tab.PutHigher(t.Context(), []store.Item{row(k, "r", `{"k":1}`)})
		wantOutcomes(t, out, err, store.New)
		wantItem(t, tab, row(k, "r", `{"k":1}`))
	}
}

func numbers(t *testing.T, tab store.Table) {
	for i, c := range []struct{ in, want string }{
		{"0", "0"}, {"-0", "0"}, {"0.000", "0"}, {"0e5", "0"}, {"1.50", "1.5"}, {"-1.0", "-1"}, {"1e2", "100"}, {"1.5E+1", "15"},
		{"1e-3", "0.001"}, {"12345e-2", "123.45"}, {"100", "100"}, {"0.10", "0.1"},
		{"99999999999999999999999999999999999999", "99999999999999999999999999999999999999"},
		{"-99999999999999999999999999999999999999", "-99999999999999999999999999999999999999"},
		{"0.12345678901234567890123456789012345678", "0.12345678901234567890123456789012345678"},
		{"1234567890123456789.0123456789012345678", "1234567890123456789.0123456789012345678"},
		{"9007199254740993", "9007199254740993"}, {"18446744073709551617", "18446744073709551617"}, {"0.1", "0.1"},
		{"1e125", "1" + strings.Repeat("0", 125)}, {"1e-130", "0." + strings.Repeat("0", 129) + "1"},
		{"9.9999999999999999999999999999999999999e125", strings.Repeat("9", 38) + strings.Repeat("0", 88)},
		{"1234500000000000000000000000000000000000000000000", "1234500000000000000000000000000000000000000000000"},
	} {
		k := fmt.Sprintf("n%d", i)
		out, err := tab.PutHigher(t.Context(), []store.Item{row(k, "r", fmt.Sprintf(`{"n":%s,"l":[{"m":%s}]}`, c.in, c.in))})
		wantOutcomes(t, out, err, store.New)
		wantItem(t, tab, row(k, "r", fmt.Sprintf(`{"l":[{"m":%s}],"n":%s}`, c.want, c.want)))
	}
}

// fullItems writes items of exactly the most bytes there may be, and of one byte more: a size function that is too kind
// fails here on DynamoDB.
func fullItems(t *testing.T, tab store.Table, docs ...string) {
	fill := func(doc string, over int) store.Item {
		item := row2("pk", "sk", "rank", strings.Replace(doc, "FILL", "", 1))
		size, err := store.ItemSize(item)
		must(t, err)
		item.Doc = []byte(strings.Replace(doc, "FILL", strings.Repeat("x", store.MaxItemBytes-size+over), 1))
		return item
	}
	for _, doc := range docs {
		item := fill(doc, 0)
		if err := tab.PutIf(t.Context(), item, store.Condition{}); err != nil {
			t.Errorf("an item of %d bytes, %.60s…: %v", store.MaxItemBytes, doc, err)
			continue
		}
		got, err := tab.Get(t.Context(), item.Key)
		must(t, err)
		if want, err := store.Canonical(item.Doc); err != nil || string(got.Doc) != string(want) {
			t.Errorf("an item of %d bytes came back other", store.MaxItemBytes)
		}
		wantInternal(t, "one byte more", tab.PutIf(t.Context(), fill(doc, 1), store.Condition{}))
		_, err = tab.PutHigher(t.Context(), []store.Item{fill(doc, 1)})
		wantInternal(t, "one byte more", err)
	}
}

func numberSizes(t *testing.T, tab store.Table) {
	numerals := make([]string, 200)
	for i := range numerals {
		numerals[i] = fmt.Sprintf("%d.%d,-%d,%de%d", i, i*7+1, i*13+1, i+1, i%40-20)
	}
	fullItems(t, tab, `{"a":"FILL","n":[`+strings.Join(numerals, ",")+`]}`)
}

func sizes(t *testing.T, tab store.Table) {
	fullItems(t, tab, `{"s":"FILL"}`, `{"é":"FILL","b":[1,"é",true,null,{"k":[]}],"c":{"x":{"y":{}}}}`)
	long := row2(strings.Repeat("p", store.MaxPKBytes), strings.Repeat("s", store.MaxSKBytes), "r", `{"a":1}`)
	out, err := tab.PutHigher(t.Context(), []store.Item{long})
	wantOutcomes(t, out, err, store.New)
	wantItem(t, tab, long)
}

func refused(t *testing.T, tab store.Table) {
	good := row2("good", "s", "r", `{"a":1}`)
	for _, c := range []struct {
		why  string
		item store.Item
	}{
		{"empty pk", row2("", "s", "r", `{}`)},
		{"empty sk", row2("p", "", "r", `{}`)},
		{"long pk", row2(strings.Repeat("p", store.MaxPKBytes+1), "s", "r", `{}`)},
		{"long sk", row2("p", strings.Repeat("s", store.MaxSKBytes+1), "r", `{}`)},
		{"pk not UTF-8", row2("p\xff", "s", "r", `{}`)},
		{"rank not UTF-8", row2("p", "s", "\xff", `{}`)},
		{"no document", row2("p", "s", "r", ``)},
		{"an array", row2("p", "s", "r", `[]`)},
		{"a string", row2("p", "s", "r", `"x"`)},
		{"null", row2("p", "s", "r", `null`)},
		{"cut short", row2("p", "s", "r", `{"a":1`)},
		{"text after", row2("p", "s", "r", `{"a":1} x`)},
		{"bare word", row2("p", "s", "r", `{"a":yes}`)},
		{"comma at the end", row2("p", "s", "r", `{"a":1,}`)},
		{"leading zero", row2("p", "s", "r", `{"a":01}`)},
		{"plus sign", row2("p", "s", "r", `{"a":+1}`)},
		{"name twice", row2("p", "s", "r", `{"a":1,"b":2,"a":3}`)},
		{"name twice, escaped", row2("p", "s", "r", `{"a":1,"\u0061":3}`)},
		{"name twice inside", row2("p", "s", "r", `{"x":{"a":1,"a":3}}`)},
		{"empty name", row2("p", "s", "r", `{"":1}`)},
		{"empty name inside", row2("p", "s", "r", `{"a":[{"":1}]}`)},
		{"long name", row2("p", "s", "r", `{"`+strings.Repeat("n", 65_536)+`":1}`)},
		{"the key again", row2("p", "s", "r", `{"_pk":"p"}`)},
		{"the rank again", row2("p", "s", "r", `{"_rank":"p"}`)},
		{"text not UTF-8", row2("p", "s", "r", "{\"a\":\"\xff\"}")},
		{"lone surrogate", row2("p", "s", "r", `{"a":"\ud83c"}`)},
		{"control character", row2("p", "s", "r", "{\"a\":\"\n\"}")},
		{"39 digits", row2("p", "s", "r", `{"a":123456789012345678901234567890123456789}`)},
		{"39 digits, a fraction", row2("p", "s", "r", `{"a":[0.123456789012345678901234567890123456789]}`)},
		{"too large a number", row2("p", "s", "r", `{"a":1e126}`)},
		{"too small a number", row2("p", "s", "r", `{"a":{"b":1e-131}}`)},
		{"far too large a number", row2("p", "s", "r", `{"a":1e999999999999999999999}`)},
		{"33 levels of lists", row2("p", "s", "r", nested(store.MaxDepth+1, "1"))},
		{"33 levels of lists, the last empty", row2("p", "s", "r", nested(store.MaxDepth+1, "[]"))},
		{"33 levels of maps", row2("p", "s", "r", nestedMaps(store.MaxDepth+1, "1"))},
		{"index key a number", row2("p", "s", "r", `{"pipeline":1}`)},
		{"index key null", row2("p", "s", "r", `{"pipeline":null,"slot":"x"}`)},
		{"index key empty", row2("p", "s", "r", `{"slot":""}`)},
		{"index key long", row2("p", "s", "r", `{"slot":"`+strings.Repeat("s", store.MaxSKBytes+1)+`"}`)},
	} {
		wantInternal(t, c.why+": put if", tab.PutIf(t.Context(), c.item, store.Condition{}))
		_, err := tab.PutHigher(t.Context(), []store.Item{good, c.item})
		wantInternal(t, c.why+": put higher", err)
		_, err = tab.PutAllHigher(t.Context(), []store.Item{good, c.item})
		wantInternal(t, c.why+": put all higher", err)
	}
	// C39: what a kind stand-in would take.
	_, err := tab.PutHigher(t.Context(), []store.Item{good, row2("good", "s", "q", `{}`)})
	wantInternal(t, "key twice", err)
	_, err = tab.PutAllHigher(t.Context(), []store.Item{good, good})
	wantInternal(t, "key twice, atomic", err)
	_, err = tab.PutHigher(t.Context(), []store.Item{good, row2("p", "s", "", `{}`)})
	wantInternal(t, "no rank", err)
	_, err = tab.PutHigher(t.Context(), many(store.MaxPutHigher+1, "r"))
	wantInternal(t, "too many items", err)
	_, err = tab.PutAllHigher(t.Context(), many(store.MaxPutAllHigher+1, "r"))
	wantInternal(t, "too many items, atomic", err)
	large := many(12, "r")
	for i := range large {
		large[i].Doc = []byte(`{"a":"` + strings.Repeat("x", 400_000) + `"}`)
	}
	_, err = tab.PutAllHigher(t.Context(), large)
	wantInternal(t, "more than 4 MB, atomic", err)

	keys := make([]store.Key, store.MaxBatchGet+1)
	for i := range keys {
		keys[i] = store.Key{PK: fmt.Sprint(i), SK: "s"}
	}
	_, err = tab.Ranks(t.Context(), keys)
	wantInternal(t, "too many keys", err)
	_, err = tab.Ranks(t.Context(), []store.Key{keys[0], keys[1], keys[0]})
	wantInternal(t, "key twice in ranks", err)
	for _, k := range []store.Key{{}, {PK: "p"}, {SK: "s"}} {
		_, err = tab.Ranks(t.Context(), []store.Key{k})
		wantInternal(t, fmt.Sprintf("ranks of %+v", k), err)
		_, err = tab.Get(t.Context(), k)
		wantInternal(t, fmt.Sprintf("get of %+v", k), err)
	}
	for _, q := range []store.Query{{}, {PK: "p", Index: "none"}, {PK: "p", Limit: -1}, {PK: "p\xff"}, {Index: "open"}} {
		for _, err := range tab.Query(t.Context(), q) {
			wantInternal(t, fmt.Sprintf("query %+v", q), err)
		}
	}
	for _, cond := range []store.Condition{
		{Absent: true, Equals: map[string]any{"a": int64(1)}},
		{Equals: map[string]any{"a": 1}}, {Equals: map[string]any{"a": nil}}, {Equals: map[string]any{"": "x"}},
		{Equals: map[string]any{"a": []string{"x"}}}, {Equals: map[string]any{"a": "\xff"}},
	} {
		wantInternal(t, fmt.Sprintf("condition %+v", cond), tab.PutIf(t.Context(), good, cond))
	}
	wantNone(t, tab, good.Key) // nothing of all that was written
}

func refusedFlat(t *testing.T, tab store.Table) {
	wantInternal(t, "put if", tab.PutIf(t.Context(), row2("p", "s", "", `{}`), store.Condition{}))
	_, err := tab.PutHigher(t.Context(), []store.Item{row2("p", "s", "r", `{}`)})
	wantInternal(t, "put higher", err)
	_, err = tab.Get(t.Context(), store.Key{PK: "p", SK: "s"})
	wantInternal(t, "get", err)
	_, err = tab.Ranks(t.Context(), []store.Key{{PK: "p", SK: "s"}})
	wantInternal(t, "ranks", err)
	for _, err := range tab.Query(t.Context(), store.Query{PK: "p", SKPrefix: "s"}) {
		wantInternal(t, "query", err)
	}
	wantNone(t, tab, key("p"))
}

func putIf(t *testing.T, tab store.Table) {
	k := store.Key{PK: "orders/20261130T100000Z", SK: "batch"}
	put := func(doc string, cond store.Condition) error {
		return tab.PutIf(t.Context(), store.Item{Key: k, Doc: []byte(doc)}, cond)
	}
	// refusedWith checks that the put fails and hands back the item that was in the way.
	refusedWith := func(what string, err error, old string) {
		t.Helper()
		var c *store.ConditionError
		switch {
		case !errors.As(err, &c) || !errors.Is(err, store.ErrCondition):
			t.Errorf("%s: error %v, want a ConditionError", what, err)
		case old == "" && c.Old != nil:
			t.Errorf("%s: old item %s, want none", what, text(*c.Old))
		case old != "" && (c.Old == nil || text(*c.Old) != text(store.Item{Key: k, Doc: []byte(old)})):
			t.Errorf("%s: old item %+v, want %s", what, c.Old, old)
		}
	}
	equals := func(pairs ...any) store.Condition {
		c := store.Condition{Equals: map[string]any{}}
		for i := 0; i < len(pairs); i += 2 {
			c.Equals[pairs[i].(string)] = pairs[i+1]
		}
		return c
	}
	refusedWith("equals on nothing", put(`{"n":1}`, equals("n", int64(1))), "")
	wantNone(t, tab, k)
	must(t, put(`{"fence":1,"open":true,"state":"RUNNING","dec":1.0,"deep":{"x":1}}`, store.Condition{Absent: true}))
	held := `{"dec":1,"deep":{"x":1},"fence":1,"open":true,"state":"RUNNING"}`
	refusedWith("absent on something", put(`{"n":2}`, store.Condition{Absent: true}), held)
	for _, c := range []store.Condition{
		equals("state", "FAILED"), equals("state", "RUNNIN"), equals("state", "running"), equals("state", ""),
		equals("fence", int64(2)), equals("fence", int64(-1)), equals("fence", "1"), equals("fence", true),
		equals("open", false), equals("open", "true"), equals("open", int64(1)),
		equals("none", "x"), equals("none", false), equals("deep.x", int64(1)), equals("deep", "{}"),
		equals("state", "RUNNING", "fence", int64(2)), equals("state", "RUNNING", "fence", int64(1), "open", false),
	} {
		refusedWith(fmt.Sprintf("equals %v", c.Equals), put(`{"n":2}`, c), held)
	}
	wantItem(t, tab, store.Item{Key: k, Doc: []byte(held)})
	must(t, put(held, equals("state", "RUNNING", "fence", int64(1), "open", true, "dec", int64(1))))
	must(t, put(`{"state":"ñ \"q\"","size":9223372036854775807,"min":-9223372036854775808,"a.b":"x","#n":"y"}`, equals("fence", int64(1))))
	wide := equals("state", "ñ \"q\"", "size", int64(9223372036854775807), "min", int64(-9223372036854775808), "a.b", "x", "#n", "y")
	must(t, put(`{"only":true}`, wide))
	wantItem(t, tab, store.Item{Key: k, Doc: []byte(`{"only":true}`)}) // replaced, not merged
	must(t, put(`{"free":1}`, store.Condition{}))
	wantItem(t, tab, store.Item{Key: k, Doc: []byte(`{"free":1}`)})
	must(t, tab.PutIf(t.Context(), store.Item{Key: store.Key{PK: k.PK, SK: "other"}, Doc: []byte(`{}`)}, store.Condition{Absent: true}))
	refusedWith("still absent", put(`{}`, store.Condition{Absent: true}), `{"free":1}`)

	most := equals()
	doc := map[string]int64{}
	for i := range store.MaxConditionAttrs {
		name := fmt.Sprintf("attribute_%02d", i)
		most.Equals[name], doc[name] = int64(i), int64(i)
	}
	body, err := json.Marshal(doc)
	must(t, err)
	must(t, put(string(body), store.Condition{}))
	must(t, put(`{"done":1}`, most))
}

func putIfRace(t *testing.T, tab store.Table) {
	const racers = 20
	errs := make([]error, racers)
	doc := func(i int) string { return fmt.Sprintf(`{"owner":"o%d"}`, i) }
	race(racers, func(i int) {
		errs[i] = tab.PutIf(t.Context(), row("claim", "", doc(i)), store.Condition{Absent: true})
	})
	winner := -1
	for i, err := range errs {
		var c *store.ConditionError
		switch {
		case err == nil && winner >= 0:
			t.Errorf("%d and %d both won", winner, i)
		case err == nil:
			winner = i
		case !errors.As(err, &c):
			t.Errorf("racer %d: %v", i, err)
		}
	}
	if winner < 0 {
		t.Fatal("nobody won")
	}
	wantItem(t, tab, row("claim", "", doc(winner)))
	for i, err := range errs {
		var c *store.ConditionError
		if errors.As(err, &c) && (c.Old == nil || string(c.Old.Doc) != doc(winner)) {
			t.Errorf("racer %d saw old item %+v, want the winner's", i, c.Old)
		}
	}
}

func putHigher(t *testing.T, tab store.Table) {
	put := func(rank, doc string, want store.Outcome) {
		t.Helper()
		out, err := tab.PutHigher(t.Context(), []store.Item{row("k", rank, doc)})
		wantOutcomes(t, out, err, want)
	}
	put("0001|b", `{"v":1,"w":1}`, store.New)
	put("0001|b", `{"v":1,"w":1}`, store.Unchanged)
	put("0001|b", `{"other":true}`, store.Unchanged) // the rank decides, nothing else
	wantItem(t, tab, row("k", "0001|b", `{"v":1,"w":1}`))
	put("0001|a", `{"v":0}`, store.Stale)
	put("0001", `{"v":0}`, store.Stale)
	wantItem(t, tab, row("k", "0001|b", `{"v":1,"w":1}`))
	put("0001|c", `{"v":2}`, store.Updated) // replaces, not merges
	wantItem(t, tab, row("k", "0001|c", `{"v":2}`))
	put("0001|ca", `{"v":3}`, store.Updated)
	put("0001|é", `{"v":4}`, store.Updated)
	put("0001|z", `{"v":5}`, store.Stale)

	must(t, tab.PutIf(t.Context(), row("bare", "", `{"v":0}`), store.Condition{}))
	out, err := tab.PutHigher(t.Context(), []store.Item{
		row("k", "0002", `{"v":6}`), row("bare", "0", `{"v":1}`), row("n1", "1", `{}`), row("n0", "1", `{}`),
	})
	wantOutcomes(t, out, err, store.Updated, store.Updated, store.New, store.New)
	wantItem(t, tab, row("bare", "0", `{"v":1}`))
	out, err = tab.PutHigher(t.Context(), nil)
	wantOutcomes(t, out, err)
}

// putHigherAnyOrder checks that the table is the same whatever the order of writes.
func putHigherAnyOrder(t *testing.T, tab store.Table) { // R15, B5
	ranks := []string{"1", "2", "3", "4"}
	orders := permutations(ranks)
	for i, order := range orders {
		k := fmt.Sprintf("k%02d", i)
		highest, news := "", 0
		for _, r := range order {
			out, err := tab.PutHigher(t.Context(), []store.Item{row2(k, "s", r, `{"v":`+r+`}`)})
			want := store.Higher(highest, r, highest != "")
			wantOutcomes(t, out, err, want)
			if want == store.New {
				news++
			}
			highest = max(highest, r)
		}
		wantItem(t, tab, row2(k, "s", "4", `{"v":4}`))
		if news != 1 {
			t.Errorf("order %v: new %d times", order, news)
		}
	}
}

func permutations(in []string) [][]string {
	if len(in) < 2 {
		return [][]string{in}
	}
	var out [][]string
	for i := range in {
		for _, p := range permutations(slices.Concat(in[:i], in[i+1:])) {
			out = append(out, append([]string{in[i]}, p...))
		}
	}
	return out
}

func putHigherRace(t *testing.T, tab store.Table) {
	const racers, keys = 16, 5
	outcomes := make([][]store.Outcome, racers)
	errs := make([]error, racers)
	race(racers, func(i int) {
		rank := fmt.Sprintf("%02d", i)
		var items []store.Item
		for k := range keys {
			items = append(items, row(fmt.Sprintf("k%d", (k+i)%keys), rank, `{"v":"`+rank+`"}`))
		}
		outcomes[i], errs[i] = tab.PutHigher(t.Context(), items)
	})
	must(t, errors.Join(errs...))
	news := 0
	for _, out := range outcomes {
		for _, o := range out {
			if o == store.New {
				news++
			}
			if o == store.Unchanged {
				t.Errorf("an outcome is unchanged, though all ranks differ")
			}
		}
	}
	if news != keys {
		t.Errorf("%d outcomes are new, want %d", news, keys)
	}
	for k := range keys {
		wantItem(t, tab, row(fmt.Sprintf("k%d", k), "15", `{"v":"15"}`))
	}
}

// many makes n items in a random order of keys.
func many(n int, rank string) []store.Item {
	items := make([]store.Item, n)
	for i, j := range rand.New(rand.NewPCG(7, 7)).Perm(n) {
		items[i] = row2(fmt.Sprintf("p%02d", j%37), fmt.Sprintf("s%05d", j), rank, fmt.Sprintf(`{"n":%d}`, j))
	}
	return items
}

func putHigher1000(t *testing.T, tab store.Table) { // B8
	count := func(items []store.Item) map[store.Outcome]int {
		out, err := tab.PutHigher(t.Context(), items)
		must(t, err)
		n := map[store.Outcome]int{}
		for _, o := range out {
			n[o]++
		}
		return n
	}
	items := many(store.MaxPutHigher, "r1")
	if n := count(items[:600]); n[store.New] != 600 {
		t.Errorf("first: %v", n)
	}
	if n := count(items); n[store.New] != 400 || n[store.Unchanged] != 600 {
		t.Errorf("all, 600 there: %v", n)
	}
	for i := range items {
		items[i].Rank = []string{"r0", "r1", "r2"}[i%3]
	}
	if n := count(items); n[store.Stale] != 334 || n[store.Unchanged] != 333 || n[store.Updated] != 333 {
		t.Errorf("mixed: %v", n)
	}
	got := map[store.Key]string{}
	for part := range slices.Chunk(items, store.MaxBatchGet) {
		keys := make([]store.Key, len(part))
		for i := range part {
			keys[i] = part[i].Key
		}
		ranks, err := tab.Ranks(t.Context(), keys)
		must(t, err)
		for k, r := range ranks {
			got[k] = r
		}
	}
	for i, item := range items {
		if want := max("r1", item.Rank); got[item.Key] != want {
			t.Fatalf("item %d has rank %q, want %q", i, got[item.Key], want)
		}
	}
}

func putAllHigher(t *testing.T, tab store.Table) { // R31
	items := make([]store.Item, store.MaxPutAllHigher)
	for i := range items {
		items[i] = row(fmt.Sprintf("k%03d", (i*37)%len(items)), "1", `{"v":1}`)
	}
	out, err := tab.PutAllHigher(t.Context(), items)
	wantOutcomes(t, out, err, slices.Repeat([]store.Outcome{store.New}, len(items))...)
	out, err = tab.PutAllHigher(t.Context(), items)
	wantOutcomes(t, out, err, slices.Repeat([]store.Outcome{store.Unchanged}, len(items))...)
	out, err = tab.PutAllHigher(t.Context(), []store.Item{
		row("k000", "2", `{"v":2}`), row("k001", "1", `{"v":2}`), row("k002", "0", `{"v":2}`), row("new", "2", `{"v":2}`),
	})
	wantOutcomes(t, out, err, store.Updated, store.Unchanged, store.Stale, store.New)
	wantItem(t, tab, row("k000", "2", `{"v":2}`))
	wantItem(t, tab, row("k001", "1", `{"v":1}`))
	wantItem(t, tab, row("k002", "1", `{"v":1}`))
	wantItem(t, tab, row("new", "2", `{"v":2}`))
	for _, it := range items[3:] {
		if it.PK > "k002" {
			wantItem(t, tab, row(it.PK, "1", `{"v":1}`))
		}
	}
	out, err = tab.PutAllHigher(t.Context(), nil)
	wantOutcomes(t, out, err)
	if _, err := tab.PutAllHigher(t.Context(), []store.Item{row("none", "1", `{}`), row("bad", "1", `[]`)}); err == nil {
		t.Error("an atomic put with a bad item passed")
	}
	wantNone(t, tab, key("none"))
}

// putAllHigherRace lets atomic puts over the same keys meet: each ends whole or with a transient error, and the highest
// that ended well is there whole.
func putAllHigherRace(t *testing.T, tab store.Table) {
	const racers, keys = 6, 10
	errs := make([]error, racers)
	race(racers, func(i int) {
		rank := fmt.Sprintf("%02d", i)
		var items []store.Item
		for k := range keys {
			items = append(items, row(fmt.Sprintf("k%d", k), rank, `{"v":"`+rank+`"}`))
		}
		for range 20 { // a transient error asks for another call
			if _, errs[i] = tab.PutAllHigher(t.Context(), items); errs[i] == nil {
				return
			}
		}
	})
	must(t, errors.Join(errs...))
	for k := range keys {
		wantItem(t, tab, row(fmt.Sprintf("k%d", k), "05", `{"v":"05"}`))
	}
}

func ranks(t *testing.T, tab store.Table) {
	items := many(60, "r")
	for i := range items {
		items[i].Rank = fmt.Sprintf("r%02d", i)
	}
	_, err := tab.PutHigher(t.Context(), items)
	must(t, err)
	keys := []store.Key{}
	for i := range items {
		keys = append(keys, items[i].Key)
		if len(keys) < store.MaxBatchGet {
			keys = append(keys, store.Key{PK: items[i].PK, SK: "none"}, store.Key{PK: "none", SK: items[i].SK})
		}
	}
	seen := map[store.Key]bool{}
	keys = slices.DeleteFunc(keys, func(k store.Key) bool { was := seen[k]; seen[k] = true; return was })
	got, err := tab.Ranks(t.Context(), keys[:min(len(keys), store.MaxBatchGet)])
	must(t, err)
	for _, item := range items {
		asked := slices.Contains(keys[:min(len(keys), store.MaxBatchGet)], item.Key)
		if rank, ok := got[item.Key]; asked && rank != item.Rank || !asked && ok {
			t.Errorf("%v: rank %q, want %q", item.Key, rank, item.Rank)
		}
	}
	for k := range got {
		if k.PK == "none" || k.SK == "none" {
			t.Errorf("an absent key has an entry: %v", k)
		}
	}
	must(t, tab.PutIf(t.Context(), row2("bare", "s", "", `{}`), store.Condition{}))
	got, err = tab.Ranks(t.Context(), []store.Key{{PK: "bare", SK: "s"}})
	if rank, ok := got[store.Key{PK: "bare", SK: "s"}]; err != nil || !ok || rank != "" {
		t.Errorf("an item without rank: %v, %v", got, err)
	}
	if got, err = tab.Ranks(t.Context(), nil); err != nil || len(got) > 0 {
		t.Errorf("ranks of nothing: %v, %v", got, err)
	}
}

// sks runs a query and returns the sort keys it yields.
func sks(t *testing.T, tab store.Table, q store.Query) []string {
	t.Helper()
	out := []string{}
	for item, err := range tab.Query(t.Context(), q) {
		must(t, err)
		out = append(out, item.SK)
	}
	return out
}

func wantSKs(t *testing.T, tab store.Table, q store.Query, want ...string) {
	t.Helper()
	if got := sks(t, tab, q); !slices.Equal(got, want) {
		t.Errorf("query %+v: %q, want %q", q, got, want)
	}
}

func query(t *testing.T, tab store.Table) {
	for _, sk := range []string{"b#2", "b#1", "a", "b", "b#10", "c"} {
		must(t, tab.PutIf(t.Context(), row2("p", sk, "r-"+sk, `{"is":"`+sk+`"}`), store.Condition{}))
		must(t, tab.PutIf(t.Context(), row2("q", sk+"x", "", `{}`), store.Condition{}))
	}
	wantSKs(t, tab, store.Query{PK: "p"}, "a", "b", "b#1", "b#10", "b#2", "c")
	wantSKs(t, tab, store.Query{PK: "p", Reverse: true}, "c", "b#2", "b#10", "b#1", "b", "a")
	wantSKs(t, tab, store.Query{PK: "p", SKPrefix: "b#"}, "b#1", "b#10", "b#2")
	wantSKs(t, tab, store.Query{PK: "p", SKPrefix: "b"}, "b", "b#1", "b#10", "b#2")
	wantSKs(t, tab, store.Query{PK: "p", SKPrefix: "b", Limit: 2}, "b", "b#1")
	wantSKs(t, tab, store.Query{PK: "p", SKPrefix: "b", Limit: 1, Reverse: true}, "b#2")
	wantSKs(t, tab, store.Query{PK: "p", Limit: 100}, "a", "b", "b#1", "b#10", "b#2", "c")
	wantSKs(t, tab, store.Query{PK: "p", SKPrefix: "z"})
	wantSKs(t, tab, store.Query{PK: "P"})
	for item, err := range tab.Query(t.Context(), store.Query{PK: "p"}) {
		must(t, err)
		if want := row2("p", item.SK, "r-"+item.SK, `{"is":"`+item.SK+`"}`); text(item) != text(want) {
			t.Errorf("got %s, want %s", text(item), text(want))
		}
		// A write of the same table in the middle of a query must not wait for it.
		must(t, tab.PutIf(t.Context(), row2("other", item.SK, "", `{}`), store.Condition{}))
		if item.SK == "b#1" {
			break
		}
	}
	wantSKs(t, tab, store.Query{PK: "other"}, "a", "b", "b#1")
}

func queryKeyOrder(t *testing.T, tab store.Table) {
	// Byte order of UTF-8: not UTF-16 (U+FFFD after U+1F389 there), not letters without case.
	want := []string{" ", "!", "#", "-", "/", "0", "10", "2", "A", "Z", "_", "a", "a ", "a!", "aa", "b", "~", "\u007f", "\u00e9",
		"\u00e9a", "\u65e5", "\ufffd", "\U0001f389", "\U0001f389\U0001f389"}
	for _, i := range rand.New(rand.NewPCG(3, 4)).Perm(len(want)) {
		_, err := tab.PutHigher(t.Context(), []store.Item{row2("p", want[i], "r", `{}`)})
		must(t, err)
	}
	wantSKs(t, tab, store.Query{PK: "p"}, want...)
	wantSKs(t, tab, store.Query{PK: "p", SKPrefix: "a"}, "a", "a ", "a!", "aa")
	wantSKs(t, tab, store.Query{PK: "p", SKPrefix: "\u00e9"}, "\u00e9", "\u00e9a")
	wantSKs(t, tab, store.Query{PK: "p", SKPrefix: "\U0001f389"}, "\U0001f389", "\U0001f389\U0001f389")
	wantSKs(t, tab, store.Query{PK: "p", SKPrefix: "\u007f"}, "\u007f")
	slices.Reverse(want)
	wantSKs(t, tab, store.Query{PK: "p", Reverse: true}, want...)
}

// queryLarge passes what DynamoDB answers at once, 1 MB.
func queryLarge(t *testing.T, tab store.Table) {
	want := []string{}
	for i := range 28 {
		sk := fmt.Sprintf("s%02d", i)
		want = append(want, sk)
		must(t, tab.PutIf(t.Context(), row2("p", sk, "", `{"a":"`+strings.Repeat("x", 120_000)+`"}`), store.Condition{}))
	}
	wantSKs(t, tab, store.Query{PK: "p"}, want...)
	wantSKs(t, tab, store.Query{PK: "p", Limit: 20}, want[:20]...)
	slices.Reverse(want)
	wantSKs(t, tab, store.Query{PK: "p", Reverse: true, Limit: 25}, want[:25]...)
}

// eventually repeats a look at an index until it shows what is expected: an index may lag.
func eventually(t *testing.T, tab store.Table, q store.Query, want ...string) {
	t.Helper()
	var got []string
	for wait := time.Millisecond; wait < 4*time.Second; wait *= 2 {
		if got = sks(t, tab, q); slices.Equal(got, want) {
			return
		}
		time.Sleep(wait)
	}
	t.Errorf("query %+v: %q, want %q", q, got, want)
}

func queryIndex(t *testing.T, tab store.Table) {
	put := func(sk, doc string) {
		t.Helper()
		must(t, tab.PutIf(t.Context(), row2("batch/"+sk, sk, "", doc), store.Condition{}))
	}
	put("3", `{"pipeline":"orders","slot":"2026-03","open":"1"}`)
	put("1", `{"pipeline":"orders","slot":"2026-01"}`)
	put("2", `{"pipeline":"orders","slot":"2026-02","open":"1","n":[1,{"k":"é"}]}`)
	put("4", `{"pipeline":"orders","slot":"2025-12","open":"1"}`)
	put("5", `{"pipeline":"other","slot":"2026-01","open":"1"}`)
	put("6", `{"pipeline":"orders"}`)
	put("7", `{"slot":"2026-09"}`)
	put("8", `{"nested":{"pipeline":"orders","slot":"2026-04"}}`)
	byOrders := store.Query{Index: "by_slot", PK: "orders"}
	eventually(t, tab, byOrders, "4", "1", "2", "3")
	eventually(t, tab, store.Query{Index: "by_slot", PK: "orders", Reverse: true}, "3", "2", "1", "4")
	eventually(t, tab, store.Query{Index: "by_slot", PK: "orders", Reverse: true, Limit: 1}, "3")
	eventually(t, tab, store.Query{Index: "by_slot", PK: "orders", SKPrefix: "2026-0"}, "1", "2", "3")
	eventually(t, tab, store.Query{Index: "by_slot", PK: "none"})
	eventually(t, tab, store.Query{Index: "open", PK: "1"}, "4", "5", "2", "3") // sparse
	for item, err := range tab.Query(t.Context(), store.Query{Index: "by_slot", PK: "orders", SKPrefix: "2026-02"}) {
		must(t, err)
		if want := row2("batch/2", "2", "", `{"n":[1,{"k":"é"}],"open":"1","pipeline":"orders","slot":"2026-02"}`); text(item) != text(want) {
			t.Errorf("got %s, want %s", text(item), text(want))
		}
	}
	put("2", `{"pipeline":"orders","slot":"2026-02"}`) // leaves the sparse index
	put("1", `{"pipeline":"orders","slot":"2026-07"}`) // moves in the other
	eventually(t, tab, store.Query{Index: "open", PK: "1"}, "4", "5", "3")
	eventually(t, tab, byOrders, "4", "2", "3", "1")
}

func tableCancelled(t *testing.T, tab store.Table) {
	must(t, tab.PutIf(t.Context(), row2("p", "s", "r", `{}`), store.Condition{}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := tab.Get(ctx, store.Key{PK: "p", SK: "s"})
	wantCancelled(t, "get", err)
	_, err = tab.Ranks(ctx, []store.Key{{PK: "p", SK: "s"}})
	wantCancelled(t, "ranks", err)
	wantCancelled(t, "put if", tab.PutIf(ctx, row2("n", "s", "r", `{}`), store.Condition{}))
	_, err = tab.PutHigher(ctx, many(3, "r"))
	wantCancelled(t, "put higher", err)
	_, err = tab.PutAllHigher(ctx, many(3, "r"))
	wantCancelled(t, "put all higher", err)
	for _, index := range []string{"", "open"} {
		yields := 0
		for _, err := range tab.Query(ctx, store.Query{PK: "p", Index: index}) {
			yields++
			wantCancelled(t, "query", err)
		}
		if yields != 1 {
			t.Errorf("query yielded %d times, want its error once", yields)
		}
	}
	wantNone(t, tab, store.Key{PK: "n", SK: "s"})
	wantNone(t, tab, many(3, "r")[0].Key)
}
