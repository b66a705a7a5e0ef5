package pkg_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestEveryPackageIsDocumented wants one comment a package: `Package name …`, or for a command `Command name …`.
func TestEveryPackageIsDocumented(t *testing.T) {
	type pkg struct {
		name string
		docs []string
	}
	packages := map[string]*pkg{} // by folder
	eachFile(t, func(path string, file *ast.File) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		p := packages[filepath.Dir(path)]
		if p == nil {
			p = &pkg{name: file.Name.Name}
			packages[filepath.Dir(path)] = p
		}
		if file.Doc != nil {
			p.docs = append(p.docs, file.Doc.Text())
		}
	})
	for folder, p := range packages {
		want := "Package " + p.name + " "
		if p.name == "main" {
			want = "Command " + filepath.Base(folder) + " "
		}
		switch {
		case len(p.docs) == 0:
			t.Errorf("%s has no package comment", folder)
		case len(p.docs) > 1:
			t.Errorf("%s has %d package comments", folder, len(p.docs))
		case !strings.HasPrefix(strings.ReplaceAll(p.docs[0], "\n", " "), want):
			t.Errorf("%s: the package comment does not begin with %q", folder, want)
		}
	}
	if len(packages) < 10 {
		t.Fatalf("only %d packages were looked at", len(packages))
	}
}

// TestEverySkipHasAReason finds the calls that skip a test without a word.
func TestEverySkipHasAReason(t *testing.T) {
	eachFile(t, func(path string, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || len(call.Args) > 0 {
				return true
			}
			on, ok := sel.X.(*ast.Ident)
			if ok && slices.Contains([]string{"t", "b", "f", "tb"}, on.Name) && (sel.Sel.Name == "SkipNow" || sel.Sel.Name == "Skip") {
				t.Errorf("%s: %s.%s() gives no reason", path, on.Name, sel.Sel.Name)
			}
			return true
		})
	})
}

// eachFile parses every Go file below this folder.
func eachFile(t *testing.T, visit func(path string, file *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		visit(path, file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
