package etl_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
)

// declared lists the constants of a string type in a source file, by their names, and holds that each name is its value.
func declared(t *testing.T, path, typ string) []etl.Kind {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []etl.Kind
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		id, ok := v.Type.(*ast.Ident)
		if !ok || id.Name != typ {
			return true
		}
		text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
		if err != nil || text != v.Names[0].Name {
			t.Errorf("constant %s has the value %q, %v", v.Names[0].Name, text, err)
		}
		out = append(out, etl.Kind(text))
		return true
	})
	return out
}

// TestKinds: every constant has its row, and every row says what a person needs (R1).
func TestKinds(t *testing.T) {
	var rows []etl.Kind
	for _, k := range etl.Kinds() {
		rows = append(rows, k.Kind)
		for name, text := range map[string]string{"meaning": k.Meaning, "hint": k.Hint} {
			if len(text) < 10 || !strings.HasSuffix(text, ".") && name == "meaning" || strings.TrimSpace(text) != text {
				t.Errorf("%s: %s %q", k.Kind, name, text)
			}
		}
		if k.Kind.Info() != k || !k.Kind.Known() {
			t.Errorf("%s: Info is %+v, Known %v", k.Kind, k.Kind.Info(), k.Kind.Known())
		}
		if strings.ContainsAny(string(k.Kind), ". ") {
			t.Errorf("%s: a dot would make it a name of the platform", k.Kind)
		}
	}
	if consts := declared(t, "kind.go", "Kind"); len(consts) < 20 || !slices.Equal(rows, consts) {
		t.Errorf("the table has\n%v\nthe constants are\n%v", rows, consts)
	}
	if etl.Kind("Lambda.Unknown").Known() || etl.Kind("Lambda.Unknown").Info().Kind != etl.Internal || etl.Kind("").Known() {
		t.Error("a kind outside the list is known")
	}
}

// TestExitCodes holds the design's list: whatever is not in it is 1.
func TestExitCodes(t *testing.T) { // R11
	exits := map[etl.Kind]int{
		etl.ContractInvalid: 2, etl.ContractChanged: 2, etl.WindowChanged: 2, etl.Usage: 2,
		etl.QuarantineExceeded: 3,
		etl.SourceUnavailable:  4, etl.SourceThrottled: 4,
		etl.Busy:        5,
		etl.Interrupted: 130,
	}
	for _, k := range etl.Kinds() {
		want, ok := exits[k.Kind]
		if !ok {
			want = 1
		}
		if k.Exit != want {
			t.Errorf("%s exits %d, want %d", k.Kind, k.Exit, want)
		}
	}
}

// TestTransience: bad data and faults of the operator's are never tried again by themselves (R1, R27).
func TestTransience(t *testing.T) {
	transient := []etl.Kind{etl.SourceUnavailable, etl.SourceThrottled, etl.StoreUnavailable, etl.StoreThrottled, etl.StageTimedOut, etl.StageCrashed}
	for _, k := range etl.Kinds() {
		if k.Transient != slices.Contains(transient, k.Kind) {
			t.Errorf("%s: transient %v", k.Kind, k.Transient)
		}
	}
}

func TestKindOf(t *testing.T) {
	cause := errors.New("connection reset")
	inner := etl.Errorf(etl.SourceUnavailable, "get %s: %w", "page 3", cause)
	for _, tt := range []struct {
		name string
		err  error
		want etl.Kind
	}{
		{"classified", inner, etl.SourceUnavailable},
		{"wrapped", fmt.Errorf("extract: %w", inner), etl.SourceUnavailable},
		{"classified anew: the outermost decides", etl.Errorf(etl.Superseded, "lost: %w", inner), etl.Superseded},
		{"among others", errors.Join(cause, inner), etl.SourceUnavailable},
		{"interrupted", fmt.Errorf("get: %w", context.Canceled), etl.Interrupted},
		{"out of time", fmt.Errorf("get: %w", context.DeadlineExceeded), etl.StageTimedOut},
		{"classified, for lack of time", etl.Errorf(etl.SourceUnavailable, "get: %w", context.DeadlineExceeded), etl.SourceUnavailable},
		{"unclassified", cause, etl.Internal},
	} {
		if got := etl.KindOf(tt.err); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if inner.Error() != "get page 3: connection reset" || !errors.Is(inner, cause) { // R6
		t.Errorf("%q loses its cause", inner)
	}
}
