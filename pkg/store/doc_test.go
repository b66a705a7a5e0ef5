package store_test

import (
	"bytes"
	"encoding/json"
	"math/big"
	"reflect"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// decode reads JSON with numbers as exact fractions.
func decode(t *testing.T, doc []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("decode %q: %v", doc, err)
	}
	return exact(v)
}

func exact(v any) any {
	switch v := v.(type) {
	case json.Number:
		r, _ := new(big.Rat).SetString(v.String())
		return r.RatString()
	case []any:
		for i := range v {
			v[i] = exact(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = exact(v[k])
		}
	}
	return v
}

// FuzzCanonical holds the canonical form against encoding/json: what is accepted is valid, means the same, has one form,
// and its size does not depend on how it was written.
func FuzzCanonical(f *testing.F) {
	for _, s := range []string{
		`{}`, ` { "b" : 1.50e1 , "a" : [ true , null , { "x" : "\u00e9\n" } ] } `, `{"a":-0.0,"b":"\ud83c\udf89","c":1e-130}`,
		`{"a":1,"a":2}`, `{"z":{"b":1,"a":[[]]},"y":"\/"}`, `{"a":123456789012345678901234567890.5}`, `{"a":1`, `[]`, `{"":1}`,
		`{"\u0061":1,"A":2,"\u0000":3}`, "{\"a\":\"\u2028<&>\"}", `{"a":1E+2,"b":0.10,"c":100}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		out, err := store.Canonical(doc)
		if err != nil {
			return
		}
		if !json.Valid(doc) || !json.Valid(out) {
			t.Fatalf("accepted %q, wrote %q", doc, out)
		}
		if got, want := decode(t, out), decode(t, doc); !reflect.DeepEqual(got, want) {
			t.Fatalf("%q means %v, %q means %v", doc, want, out, got)
		}
		again, err := store.Canonical(out)
		if err != nil || !bytes.Equal(again, out) {
			t.Fatalf("%q became %q, then %q, %v", doc, out, again, err)
		}
		item := store.Item{Key: store.Key{PK: "p"}}
		item.Doc = doc
		size, err := store.ItemSize(item)
		if err != nil {
			t.Fatal(err)
		}
		item.Doc = out
		if n, err := store.ItemSize(item); err != nil || n != size {
			t.Fatalf("%q has size %d, %q has %d, %v", doc, size, out, n, err)
		}
	})
}

func TestItemSize(t *testing.T) {
	for _, c := range []struct {
		doc  string
		want int // beside the key
	}{
		{`{}`, 0},
		{`{"a":"xyz"}`, 4},
		{`{"é":"日"}`, 5},
		{`{"a":"\u00e9\n"}`, 4},
		{`{"a":true,"b":null}`, 4},
		{`{"a":[]}`, 4},
		{`{"a":["x",[]]}`, 1 + 3 + (1 + 1) + (1 + 3)},
		{`{"a":{"k":"v"}}`, 1 + 3 + 1 + 1 + 1},
		{`{"a":0}`, 2},
		{`{"a":7}`, 3},
		{`{"a":-7}`, 4},
		{`{"a":12}`, 3},
		{`{"a":1.2}`, 4},
		{`{"a":123}`, 4},
		{`{"a":100}`, 3},
		{`{"a":1000}`, 3},
		{`{"a":1010}`, 4},
		{`{"a":120}`, 3},
		{`{"a":0.015}`, 3},
		{`{"a":100.5}`, 5},
		{`{"a":3.14159}`, 6},
		{`{"a":1e125}`, 3},
		{`{"a":-42}`, 4},
		{`{"a":-0}`, 2},
		{`{"a":99999999999999999999999999999999999999}`, 21},
	} {
		got, err := store.ItemSize(store.Item{Key: store.Key{PK: "pk", SK: "s"}, Rank: "rrr", Doc: []byte(c.doc)})
		if want := c.want + len("_pk") + 2 + len("_sk") + 1 + len("_rank") + 3; err != nil || got != want {
			t.Errorf("%s: size %d, %v; want %d", c.doc, got, err, want)
		}
	}
	_, err := store.ItemSize(store.Item{Doc: []byte(`{`)})
	if etl.KindOf(err) != etl.Internal {
		t.Errorf("half a document: %v", err)
	}
}

func TestCanonicalSaysWhere(t *testing.T) {
	for doc, want := range map[string]string{
		`{"a":[1,x]}`:                           "byte 8",
		`{"a":1,"b":00}`:                        "byte 11",
		`{"a":1,"b":2,"a":3}`:                   `"a" stands twice`,
		`{"a":` + strings.Repeat("9", 39) + `}`: "39 digits",
		`{"_rank":1}`:                           "_rank",
		`{"a":"\ud800x"}`:                       "bad escape",
	} {
		if _, err := store.Canonical([]byte(doc)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want it to say %s", doc, err, want)
		}
	}
}

func TestConditionHolds(t *testing.T) {
	item := func(doc string) *store.Item { return &store.Item{Doc: []byte(doc)} }
	held := item(`{"a":{"x":"}","open":true},"b":"\"q\\","c":[",",{"d":1}],"n":-5,"open":false,"s":""}`)
	eq := func(name string, v any) store.Condition { return store.Condition{Equals: map[string]any{name: v}} }
	for name, c := range map[string]struct {
		cond store.Condition
		old  *store.Item
		want bool
	}{
		"no guard":               {store.Condition{}, held, true},
		"no guard, no item":      {store.Condition{}, nil, true},
		"absent":                 {store.Condition{Absent: true}, nil, true},
		"not absent":             {store.Condition{Absent: true}, held, false},
		"equals on nothing":      {eq("n", int64(0)), nil, false},
		"number":                 {eq("n", int64(-5)), held, true},
		"escaped text":           {eq("b", `"q\`), held, true},
		"empty text":             {eq("s", ""), held, true},
		"bool after nested name": {eq("open", false), held, true},
		"nested name":            {eq("x", "}"), held, false},
		"absent name":            {eq("z", "x"), held, false},
		"empty document":         {eq("z", "x"), item(`{}`), false},
		"text is no number":      {eq("n", "-5"), held, false},
	} {
		if err := c.cond.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := c.cond.Holds(c.old); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func FuzzObjectKey(f *testing.F) {
	for _, s := range []string{"raw/pipeline=orders/_manifest.json", "a//b", "..", "a/./b", "~x", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if store.CheckObjectKey(key) != nil {
			return
		}
		if key == "" || strings.HasPrefix(key, "/") || strings.HasSuffix(key, "/") || strings.Contains(key, "..") || strings.ContainsAny(key, "~\\%+ :\x00") {
			t.Errorf("accepted %q", key)
		}
		for i := range key {
			if err := store.CheckPrefix(key[:i]); err != nil {
				t.Errorf("%q is a key, but its beginning %q is refused", key, key[:i])
			}
		}
	})
}

func TestSchemaCheck(t *testing.T) {
	for name, s := range map[string]store.Schema{
		"no name":        {},
		"quote":          {Name: `a"b`},
		"index no name":  {Name: "t", Indexes: []store.Index{{PK: "p"}}},
		"index no pk":    {Name: "t", Indexes: []store.Index{{Name: "i", SK: "s"}}},
		"quote in index": {Name: "t", Indexes: []store.Index{{Name: "i", PK: `p")`}}},
	} {
		if err := s.Check(); etl.KindOf(err) != etl.Internal || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (store.Schema{Name: "a-b_c.1", Indexes: []store.Index{{Name: "i", PK: "p.q", SK: "é"}}}).Check(); err != nil {
		t.Error(err)
	}
}
