package pipeline_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/onceload/onceload/pkg/pipeline"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with a file that is kept in the repository.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; go test ./pkg/pipeline -update, and read the difference", file)
	}
}

func TestGoldenSchema(t *testing.T) { golden(t, "pipeline.schema.json", pipeline.JSONSchema()) }

func TestGoldenReference(t *testing.T) {
	golden(t, "testdata/reference.md", []byte(pipeline.ReferenceTable()))
}

// validFiles are the files of testdata/valid and the embedded ones: every one must parse.
func validFiles(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for _, glob := range []string{"testdata/valid/*.yaml", "pipelines/*.yaml"} {
		names, err := filepath.Glob(glob)
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %v, %v", glob, names, err)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = data
		}
	}
	return files
}

func TestDecoding(t *testing.T) {
	for name, data := range validFiles(t) {
		p, err := pipeline.Parse(name, data)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		got, err := json.MarshalIndent(p, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden(t, filepath.Join("testdata", "decoded", strings.TrimSuffix(filepath.Base(name), ".yaml")+".json"), append(got, '\n'))
	}
}

// Every field of the structs has a key that fills it: with the files together none stays zero.
func TestEveryFieldIsDecoded(t *testing.T) {
	filled := map[string]bool{}
	var mark func(path string, v reflect.Value)
	mark = func(path string, v reflect.Value) {
		filled[path] = filled[path] || !v.IsZero()
		switch v.Kind() {
		case reflect.Pointer:
			if v.Type().Elem().Kind() == reflect.Struct {
				if v.IsNil() {
					v = reflect.New(v.Type().Elem())
				}
				mark(path, v.Elem())
			}
		case reflect.Struct:
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.IsExported() {
					mark(path+"."+f.Name, v.Field(i))
				}
			}
		case reflect.Slice:
			for i := range v.Len() {
				mark(path+"[]", v.Index(i))
			}
		default:
		}
	}
	for name, data := range validFiles(t) {
		p, err := pipeline.Parse(name, data)
		if err != nil {
			t.Fatal(err)
		}
		mark("Pipeline", reflect.ValueOf(*p))
	}
	for path, ok := range filled {
		if !ok {
			t.Errorf("%s is filled by no key", path)
		}
	}
}

// Every key of the reference stands in one of the files, and in the JSON Schema with a description: no key is out of reach,
// none undocumented.
func TestEveryKeyIsReachableAndDocumented(t *testing.T) {
	var schema map[string]any
	if err := json.Unmarshal(pipeline.JSONSchema(), &schema); err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	var describe func(path string, node map[string]any)
	describe = func(path string, node map[string]any) {
		text, _ := node["description"].(string)
		if described[path] = strings.HasSuffix(text, "."); !described[path] {
			t.Errorf("%s: %q is no sentence", path, text)
		}
		if props, ok := node["properties"].(map[string]any); ok {
			if node["additionalProperties"] != false {
				t.Errorf("%s: unknown keys are not refused", path)
			}
			for k, v := range props {
				describe(strings.TrimPrefix(path+"."+k, "."), v.(map[string]any))
			}
		}
		if each, ok := node["additionalProperties"].(map[string]any); ok {
			describe(path+".<name>", each)
		}
	}
	describe("", schema)

	used := map[string]bool{}
	var use func(path string, v any)
	use = func(path string, v any) {
		used[path] = true
		m, ok := v.(map[string]any)
		if !ok {
			return
		}
		for k, sub := range m {
			if slices.Contains([]string{"source.query", "source.headers", "contract.fields"}, path) {
				k = "<name>"
			}
			use(strings.TrimPrefix(path+"."+k, "."), sub)
		}
	}
	for name, data := range validFiles(t) {
		var v any
		if err := yaml.Unmarshal(data, &v); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		use("", v)
	}

	rows := strings.Split(strings.TrimSpace(pipeline.ReferenceTable()), "\n")[2:]
	for _, row := range rows {
		cells := strings.Split(strings.ReplaceAll(row, `\|`, ""), "|")
		path := strings.Trim(cells[1], " `")
		if len(cells) != 6 || strings.TrimSpace(cells[4]) == "" {
			t.Errorf("%s: want four cells and a meaning", row)
		}
		if !described[path] {
			t.Errorf("%s is not in the JSON Schema", path)
		}
		if !used[path] {
			t.Errorf("%s stands in no file of testdata/valid", path)
		}
	}
	if len(rows) != len(described)-1 { // the schema describes the root too
		t.Errorf("the reference has %d keys, the JSON Schema %d", len(rows), len(described)-1)
	}
}
