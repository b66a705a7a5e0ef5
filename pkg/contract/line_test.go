package contract_test

import (
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// ranked are valid lines, and what stands at their beginning.
var ranked = []struct {
	line string
	key  store.Key
	rank string
}{
	{`{"_batch":"b/1","_ingested_at":"2026-11-30T10:00:00Z","_pk":"eu#1","_rank":"r1","_run":"b/1/1/1.1","a":[1],"b":{"_pk":"no"}}`, store.Key{PK: "eu#1"}, "r1"},
	{`{"_batch":"b/1","_deleted":true,"_pk":"eu","_rank":"r1","_run":"b","_sk":"1","~":"_sk"}`, store.Key{PK: "eu", SK: "1"}, "r1"},
	{`{"A":{"_pk":["}",{"_rank":"\\"}]},"B":"\"}","C":-1.5,"D":[],"Z":null,"_pk":"q\"\u0001\\","_rank":"r","_sk":"\\\""}`, store.Key{PK: "q\"\x01\\", SK: "\\\""}, "r"},
	{`{"_pk":"é","_rank":"r"}`, store.Key{PK: "é"}, "r"},
	{`{"":1,"\"":2,"_pk":"a","_rank":"r","é":3}`, store.Key{PK: "a"}, "r"},
}

// TestParseRank: key and rank are those that ParseLine reads.
func TestParseRank(t *testing.T) {
	for _, c := range ranked {
		key, rank, err := contract.ParseRank([]byte(c.line))
		if err != nil || key != c.key || rank != c.rank {
			t.Errorf("%s: %+v %s %v", c.line, key, rank, err)
		}
		if item, err := contract.ParseLine([]byte(c.line)); err != nil || item.Key != key || item.Rank != rank {
			t.Errorf("%s: ParseLine reads %+v %s %v", c.line, item.Key, item.Rank, err)
		}
	}
	for _, line := range []string{``, `{`, `{}`, `[]`, `null`, `"_pk"`, `{"_pk":"a"}`, `{"_rank":"r"}`, `{"_pk":1,"_rank":"r"}`, `{"_pk":"","_rank":"r"}`,
		`{"_pk":"a","_rank":{"S":"r"}}`, `{"_pk":"a","_rank":"r`, `{"_pk":,"_rank":"r"}`, `{"_pk"-"a","_rank":"r"}`, `{"_pk":"\ud8zz","_rank":"r"}`,
		`{"b":1,"_pk":"a","_rank":"r"}`, `x{"_pk":"a","_rank":"r"}`} {
		if key, rank, err := contract.ParseRank([]byte(line)); err == nil || etl.KindOf(err) != etl.RecordsLost {
			t.Errorf("%s: %+v %q %v", line, key, rank, err)
		}
	}
}

// FuzzParseRank: whatever the text, there is no panic, and no key or rank that the text does not hold.
func FuzzParseRank(f *testing.F) {
	for _, c := range ranked {
		f.Add([]byte(c.line))
		for i := range c.line { // cut, and with a byte that means something elsewhere
			f.Add([]byte(c.line[:i]))
			for _, b := range []string{`"`, `\`, `{`, `}`, `[`, `]`, `,`, `:`} {
				f.Add([]byte(c.line[:i] + b + c.line[i+1:]))
			}
		}
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		key, rank, err := contract.ParseRank(line)
		if err != nil {
			if key != (store.Key{}) || rank != "" || etl.KindOf(err) != etl.RecordsLost {
				t.Errorf("%+v %q %v", key, rank, err)
			}
			return
		}
		for _, s := range []string{key.PK, key.SK, rank} {
			if plain := !strings.ContainsAny(string(line), `\`); plain && !strings.Contains(string(line), s) {
				t.Errorf("%s: %q", line, s)
			}
		}
	})
}
