package pipeline_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/pipeline"
)

// schemaPaths are the paths of all keys of a pipeline file.
func schemaPaths() []string {
	var paths []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(pipeline.ReferenceTable(), -1) {
		paths = append(paths, m[1])
	}
	return paths
}

// TestMessagesNameWholeKeys: a message that names a key of the pipeline file with a dot names it from the top, so that it
// can be found there; and outside of this package, where a fault has its path in front, so does one without a dot.
func TestMessagesNameWholeKeys(t *testing.T) {
	paths := schemaPaths()
	if len(paths) < 100 {
		t.Fatalf("%d keys", len(paths))
	}
	partial := func(word string) string {
		for _, p := range paths {
			if strings.HasSuffix(p, "."+word) {
				return p
			}
		}
		return ""
	}
	whole := func(word string) bool {
		return slices.ContainsFunc(paths, func(p string) bool { return p == word || strings.HasPrefix(p, word+".") })
	}
	dotted := regexp.MustCompile(`[a-z_0-9.%<>-]*[a-z_]\.[a-z_]+[a-z_.]*`)
	bare := regexp.MustCompile(`(^|[^a-z_.%-])([a-z]+_[a-z_]+)`)
	checked := 0
	check := func(where, text string, alone bool) {
		for _, word := range dotted.FindAllString(text, -1) {
			checked++
			word = strings.TrimRight(word, ".")
			top, _, _ := strings.Cut(word, ".")
			switch p := partial(word); {
			case whole(word):
			case p != "":
				t.Errorf("%s: %q names %s, which is %s", where, text, word, p)
			case slices.Contains([]string{"source", "contract", "quarantine", "checks", "target"}, top) && !strings.Contains(word, "%") && partial(word[strings.LastIndexByte(word, '.')+1:]) != "":
				t.Errorf("%s: %q names %s, which there is not", where, text, word)
			}
		}
		if !alone {
			return
		}
		for _, m := range bare.FindAllStringSubmatch(text, -1) {
			if p := partial(m[2]); p != "" && strings.Contains(text, " ") {
				t.Errorf("%s: %q names %s, which is %s", where, text, m[2], p)
			}
		}
	}
	check("the reference table", pipeline.ReferenceTable(), false)
	for _, dir := range []string{".", "../source", "../stage", "../etl", "../local", "../cli", "../ledger", "../snapshot"} {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				if _, tag := n.(*ast.Field); tag {
					return false
				}
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				text, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				check(file, text, dir != ".")
				return true
			})
		}
	}
	if checked < 50 {
		t.Errorf("only %d dotted words were looked at", checked)
	}
}
