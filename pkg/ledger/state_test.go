package ledger_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
)

// TestMovesStandInThePackageComment compares the table in code with the one for people.
func TestMovesStandInThePackageComment(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var told []ledger.Legal
	row := regexp.MustCompile(`(?m)^//\t([a-z]+) +(-|[A-Z]+) +([A-Z]+)$`)
	for _, m := range row.FindAllStringSubmatch(string(doc), -1) {
		from := ledger.State(m[2])
		if m[2] == "-" {
			from = ledger.StateAbsent
		}
		told = append(told, ledger.Legal{Move: ledger.Move(m[1]), From: from, To: ledger.State(m[3])})
	}
	if !slices.Equal(told, ledger.Moves()) {
		t.Errorf("the package comment says\n%v\nthe code\n%v", told, ledger.Moves())
	}
}

// constants lists the values of the string constants of a type in the package's source.
func constants(t *testing.T, typ string) []string {
	file, err := parser.ParseFile(token.NewFileSet(), "state.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			if id, ok := v.Type.(*ast.Ident); ok && id.Name == typ {
				text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, text)
			}
		}
	}
	return out
}

// TestEveryMoveFromEveryState tries all pairs: the table's rows lead where it says, all others are errors.
func TestEveryMoveFromEveryState(t *testing.T) {
	states, moves := constants(t, "State"), constants(t, "Move")
	if len(states) != 4 || len(moves) != 7 {
		t.Fatalf("states %q, moves %q", states, moves)
	}
	legal := 0
	for _, s := range states {
		reached := s == string(ledger.StateAbsent)
		for _, m := range moves {
			i := slices.IndexFunc(ledger.Moves(), func(l ledger.Legal) bool { return string(l.From) == s && string(l.Move) == m })
			next, err := ledger.State(s).Next(ledger.Move(m))
			if i < 0 {
				wantKind(t, err, etl.Internal)
				if next != ledger.State(s) {
					t.Errorf("the illegal move %s leads from %q to %q", m, s, next)
				}
				continue
			}
			legal++
			if err != nil || next != ledger.Moves()[i].To {
				t.Errorf("%s from %q: %q, %v", m, s, next, err)
			}
		}
		for _, l := range ledger.Moves() {
			reached = reached || string(l.To) == s
		}
		if !reached {
			t.Errorf("no move leads to %q", s)
		}
	}
	if legal != len(ledger.Moves()) {
		t.Errorf("%d rows, %d of them reached: a row stands twice, or names no constant", len(ledger.Moves()), legal)
	}
	_, err := ledger.StateRunning.Next("fly")
	wantKind(t, err, etl.Internal)
}
