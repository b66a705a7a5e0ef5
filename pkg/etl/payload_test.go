package etl_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceload/onceload/pkg/etl"
)

var update = flag.Bool("update", false, "write the golden files anew")

// payload is one type of payload, with every field set.
type payload struct {
	name   string
	full   any
	zero   any
	decode func([]byte) (any, error)
}

func of[T any](t *testing.T) payload {
	var full, zero T
	n := 0
	fill(t, reflect.ValueOf(&full).Elem(), &n)
	return payload{reflect.TypeFor[T]().Name(), full, zero, func(b []byte) (any, error) { return etl.Decode[T](b) }}
}

// fill sets every field to a value of its own.
func fill(t *testing.T, v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, v.Index(i), n)
		}
	case reflect.String:
		v.SetString("text " + strconv.Itoa(*n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	default:
		t.Fatalf("a payload holds a %s: say here how to fill it", v.Type())
	}
}

func payloads(t *testing.T) []payload {
	return []payload{
		of[etl.Request](t), of[etl.Range](t),
		of[etl.ExtractInput](t), of[etl.Progress](t),
		of[etl.RangeInput](t), of[etl.RangeOutput](t),
		of[etl.GateInput](t), of[etl.GateOutput](t),
		of[etl.LoadInput](t), of[etl.LoadPosition](t), of[etl.LoadOutput](t), of[etl.LoadCounts](t), of[etl.Counts](t),
		of[etl.SettleInput](t), of[etl.SettleOutput](t),
		of[etl.RecordFailureInput](t), of[etl.StateError](t), of[etl.Failure](t),
		of[etl.RaiseInput](t), of[etl.RaiseOutput](t), of[etl.FunctionError](t),
	}
}

func TestEveryPayloadIsTested(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "payload.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared, tested []string
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.TypeSpec); ok {
			if _, ok := s.Type.(*ast.StructType); ok {
				declared = append(declared, s.Name.Name)
			}
		}
		return true
	})
	for _, p := range payloads(t) {
		tested = append(tested, p.name)
	}
	slices.Sort(declared)
	slices.Sort(tested)
	if !slices.Equal(declared, tested) {
		t.Errorf("payload.go declares %v\nhere are     %v", declared, tested)
	}
}

// TestPayloads holds the names and shapes that the state machine and executions under way rely on.
func TestPayloads(t *testing.T) {
	for _, p := range payloads(t) {
		t.Run(p.name, func(t *testing.T) {
			got, err := json.MarshalIndent(p.full, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			path := filepath.Join("testdata", p.name+".golden.json")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatalf("%v (run the test with -update)", err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if back, err := p.decode(want); err != nil || !reflect.DeepEqual(back, p.full) {
				t.Errorf("comes back as %+v, %v\nwant %+v", back, err, p.full)
			}
			empty, err := json.Marshal(p.zero)
			if err != nil {
				t.Fatal(err)
			}
			if back, err := p.decode(empty); err != nil || !reflect.DeepEqual(back, p.zero) {
				t.Errorf("the zero value %s comes back as %+v, %v", empty, back, err)
			}
		})
	}
}

// TestDecodeIsStrict puts something unknown at every place of every payload.
func TestDecodeIsStrict(t *testing.T) {
	for _, p := range payloads(t) {
		t.Run(p.name, func(t *testing.T) {
			good, err := json.Marshal(p.full)
			if err != nil {
				t.Fatal(err)
			}
			refused := func(text string) {
				t.Helper()
				if v, err := p.decode([]byte(text)); err == nil || etl.KindOf(err) != etl.Usage {
					t.Errorf("%s is taken for %+v, %v: want an error of kind Usage", text, v, err)
				}
			}
			accepted := func(text string) {
				t.Helper()
				if v, err := p.decode([]byte(text)); err != nil || !reflect.DeepEqual(v, p.full) {
					t.Errorf("%q: %+v, %v", text, v, err)
				}
			}
			accepted(string(good))
			accepted(" \t\r\n" + string(good) + "\n")
			for i := range good {
				if good[i] == '{' {
					refused(string(good[:i+1]) + `"unknown":1,` + string(good[i+1:]))
				}
			}
			for _, after := range []string{"{}", " null", "x", "}", "]", ",", "\n" + string(good)} {
				refused(string(good) + after)
			}
			for _, text := range []string{"", " ", "null", "[]", `""`, "1", "true", "{", string(good[:len(good)-1]), "[" + string(good) + "]"} {
				refused(text)
			}
		})
	}
}

func TestDecodeNamesThePayload(t *testing.T) {
	_, err := etl.Decode[etl.GateInput]([]byte(`{"fense":1}`))
	if err == nil || !strings.Contains(err.Error(), "GateInput") || !strings.Contains(err.Error(), "fense") {
		t.Errorf("%v: want the payload and the field named", err)
	}
}

func TestLoadCounts(t *testing.T) { // B7
	a := etl.LoadCounts{New: 1, Updated: 10, Unchanged: 100, Stale: 1000, Duplicate: 10_000}
	sum := a.Add(a).Add(etl.LoadCounts{New: 1})
	if a.Total() != 11_111 || sum != (etl.LoadCounts{New: 3, Updated: 20, Unchanged: 200, Stale: 2000, Duplicate: 20_000}) {
		t.Errorf("total %d, sum %+v", a.Total(), sum)
	}
	// A count that is new must be in the sum and in the total.
	var one etl.LoadCounts
	v := reflect.ValueOf(&one).Elem()
	for i := range v.NumField() {
		v.Field(i).SetInt(1)
	}
	if n := int64(v.NumField()); one.Total() != n || one.Add(one).Total() != 2*n {
		t.Errorf("%d counts, total %d, sum %d", n, one.Total(), one.Add(one).Total())
	}
}

func TestFormatTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInstant(t, "time")
		text := etl.FormatTime(in)
		back, err := time.Parse(time.RFC3339, text)
		if err != nil || !back.Equal(in) || !strings.HasSuffix(text, "Z") {
			t.Errorf("%s is written %s and comes back as %s, %v", in, text, back, err)
		}
	})
}

func TestParseTime(t *testing.T) {
	for text, want := range map[string]string{
		"2026-11-30T10:00:00Z":      "2026-11-30T10:00:00Z",
		"2026-11-30T12:00:00+02:00": "2026-11-30T10:00:00Z",
		"2026-11-30T10:00:00.25Z":   "2026-11-30T10:00:00.25Z",
		"20261130T100000Z":          "2026-11-30T10:00:00Z",
		"2026-11-30T10:00Z":         "2026-11-30T10:00:00Z",
		"2026-11-30":                "2026-11-30T00:00:00Z",
	} {
		if got, err := etl.ParseTime(text); err != nil || etl.FormatTime(got) != want || got.Location() != time.UTC {
			t.Errorf("%s: %s %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "now", "2026-11-30T10:00:00", "2026-11-30 10:00:00Z", "2026-13-01", "2026-02-29", "1796033100", "20261130"} {
		if got, err := etl.ParseTime(text); err == nil || etl.KindOf(err) != etl.Usage {
			t.Errorf("%q: %s %v, want an error of kind Usage", text, got, err)
		}
	}
}
