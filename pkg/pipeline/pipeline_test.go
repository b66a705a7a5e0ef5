package pipeline_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/pipeline"
)

func TestEmbeddedPipelines(t *testing.T) {
	names := pipeline.Names()
	if !slices.Equal(names, []string{"earthquakes", "github-issues", "orders"}) {
		t.Fatalf("names %v", names)
	}
	var all []*pipeline.Pipeline
	for _, name := range names {
		p, err := pipeline.Find(name)
		if err != nil {
			t.Fatalf("%s:\n%v", name, err)
		}
		if p.Name != name {
			t.Errorf("%s.yaml is the pipeline %s", name, p.Name)
		}
		all = append(all, p)
	}
	if err := pipeline.CheckTogether(all); err != nil {
		t.Error(err)
	}
}

func TestFind(t *testing.T) {
	file := filepath.Join(t.TempDir(), "orders.yml")
	if err := os.WriteFile(file, []byte(sound), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := pipeline.Find(file)
	if err != nil {
		t.Fatal(err)
	}
	if p.File != file || p.Source.URL != "https://api.example.com/v1/orders" {
		t.Errorf("file %s, url %s", p.File, p.Source.URL)
	}
	if same, err := pipeline.Parse("elsewhere", []byte(sound)); err != nil || same.Digest != p.Digest || len(p.Digest) != 64 {
		t.Errorf("digest %s, of the same bytes %v (%v)", p.Digest, same, err)
	}

	// A name never means a file: orders is the embedded one, even beside a file orders.
	t.Chdir(filepath.Dir(file))
	if p, err = pipeline.Find("orders"); err != nil || p.File != "pipelines/orders.yaml" {
		t.Errorf("orders is %v (%v)", p, err)
	}
	if p, err = pipeline.Find("orders.yml"); err != nil || p.File != "orders.yml" {
		t.Errorf("orders.yml is %v (%v)", p, err)
	}

	_, err = pipeline.Find("order")
	if etl.KindOf(err) != etl.Usage || !strings.Contains(err.Error(), "did you mean orders?") {
		t.Errorf("near name: %v", err)
	}
	_, err = pipeline.Find("../orders")
	if etl.KindOf(err) != etl.Usage || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(file, make([]byte, 10*pipeline.MaxFileBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err = pipeline.Find(file); etl.KindOf(err) != etl.ContractInvalid || !strings.HasPrefix(err.Error(), file+":1:1: the file has more than") {
		t.Errorf("large file: %v", err)
	}
}

// How a value is quoted, and how a mapping is laid out, makes no difference.
func TestStylesOfYAML(t *testing.T) {
	for _, c := range []struct{ name, old, new string }{
		{"quoted number as a query value", "limit: 500", `limit: "500"`},
		{"single quotes", "records: data", "records: 'data'"},
		{"double quotes", "pipeline: orders", `"pipeline": "orders"`},
		{"block text", "records: data", "records: |-\n    data"},
		{"folded text", "records: data", "records: >-\n    data"},
		{"block mapping", "target: {table: orders}", "target:\n  table: orders"},
		{"block list", "key: [shop, id]", "key:\n    - shop\n    - id"},
		{"text as a bound", "min: 0", `min: "0"`},
		{"comments", "records: data", "records: data # here\n  # and here"},
		{"windows", "\n", "\r\n"},
		{"byte order mark", "pipeline: orders", "\ufeffpipeline: orders"},
		{"document marks", "pipeline: orders", "---\npipeline: orders"},
		{"other order", "pipeline: orders\nevery: 1h\n", "every: 1h\npipeline: orders\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, err := pipeline.Parse("p.yaml", []byte(sound))
			if err != nil {
				t.Fatal(err)
			}
			text := strings.ReplaceAll(sound, c.old, c.new)
			if text == sound {
				t.Fatalf("%q is not in the sound file", c.old)
			}
			got, err := pipeline.Parse("p.yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if got.Digest == want.Digest {
				t.Error("one digest for two texts")
			}
			got.Digest = want.Digest
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestCheckTogether(t *testing.T) {
	parse := func(file, name, budget string) *pipeline.Pipeline {
		t.Helper()
		text := strings.Replace(sound, "pipeline: orders", "pipeline: "+name, 1)
		p, err := pipeline.Parse(file, []byte(strings.Replace(text, "  records: data", "  budget: "+budget+"\n  records: data", 1)))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	of := func(t *testing.T, old, with string) *pipeline.Pipeline {
		t.Helper()
		text := strings.NewReplacer("pipeline: orders", "pipeline: b", "checks: {min_records: 1}\n", "").Replace(sound)
		p, err := pipeline.Parse("b.yaml", []byte(strings.Replace(text, old, with, 1)))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	shared := parse("a.yaml", "a", "{rate: 10/s}")
	for _, c := range []struct {
		name  string
		other *pipeline.Pipeline
		want  string
	}{
		{"same limits", parse("b.yaml", "b", "{name: api.example.com, rate: 600/m}"), ""},
		{"another name", parse("b.yaml", "b", "{name: b, rate: 5/s}"), ""},
		{"no limits", parse("b.yaml", "b", "{}"), ""},
		{"other limits under the host's name", parse("b.yaml", "b", "{rate: 5/s}"),
			"b.yaml:8:3: source.budget: a.yaml gives the budget api.example.com other limits; write the same limits, or another name, instead"},
		{"one table, other keys", of(t, "target: {table: orders}", "target: {table: orders, partition: [shop], sort: [id]}"), "b.yaml:1:1: target.table: a.yaml loads into the table orders too, with another sort key; write a table of its own, or the same sort key, instead"},
		{"one table, other versions", of(t, "  version: updated\n", ""), "b.yaml:1:1: target.table: a.yaml loads into the table orders too, with another type of version; write a table of its own, or the same type of version, instead"},
		{"one table in SQLite alone", of(t, "target: {table: orders}", "target: {table: Orders}"), "b.yaml:1:1: target.table: a.yaml loads into the table orders too, with another spelling; write a table of its own, or the same spelling, instead"},
		{"one table, all the same", of(t, "", ""), ""},
		{"one name twice", parse("b.yaml", "a", "{name: b}"), "b.yaml:1:1: pipeline: a.yaml has a pipeline a too; write another name instead"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := pipeline.CheckTogether([]*pipeline.Pipeline{shared, c.other})
			if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want || etl.KindOf(err) != etl.ContractInvalid) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// R13: what a request asks for follows from the slot alone.
func TestExpand(t *testing.T) {
	slot := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	w := etl.Window{Start: slot.Add(-time.Hour), End: slot.Add(time.Hour)}
	berlin := time.FixedZone("", 3600)
	for _, c := range []struct{ text, want, err string }{
		{"", "", ""},
		{"plain", "plain", ""},
		{"{window.start}", "2026-11-30T09:00:00Z", ""},
		{"{window.end}", "2026-11-30T11:00:00Z", ""},
		{"{slot}", "2026-11-30T10:00:00Z", ""},
		{"{slot:unix}", "1796032800", ""},
		{"{slot:unix_ms}", "1796032800000", ""},
		{"{window.start:date}..{window.end:date}", "2026-11-30..2026-11-30", ""},
		{"{{slot}}", "{slot}", ""},
		{"{{window.start:unix}}", "{window.start:unix}", ""},
		{"{{x}}", "{x}", ""},
		{"{{slot}", "{2026-11-30T10:00:00Z", ""},
		{`{"a":{"b":{slot:unix}}}`, `{"a":{"b":1796032800}}`, ""},
		{"{orders{id}}", "{orders{id}}", ""},
		{"{ slot }", "{ slot }", ""},
		{"{}", "{}", ""},
		{"{slot", "{slot", ""},
		{"{window.begin}", "", "{window.begin} is no placeholder"},
		{"{window}", "", "{window} is no placeholder"},
		{"{slot:iso}", "", "{slot:iso} has a format that is not unix, unix_ms or date"},
		{"{slot:}", "", "{slot:} has a format that is not unix, unix_ms or date"},
		{"{slot:unix:date}", "", "{slot:unix:date} has a format that is not unix, unix_ms or date"},
	} {
		t.Run(c.text, func(t *testing.T) {
			// An instant is the same whatever zone it is shown in.
			got, err := pipeline.Expand(c.text, slot.In(berlin), etl.Window{Start: w.Start.In(berlin), End: w.End.In(berlin)})
			if got != c.want || c.err == "" && err != nil || c.err != "" && (err == nil || err.Error() != c.err) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// FuzzParse holds that Parse never panics, that an error is a list of faults with their places in the file, and that what
// it accepts can be used: its placeholders expand and it is decoded the same way twice.
func FuzzParse(f *testing.F) {
	f.Add([]byte(sound))
	for _, c := range faultCases() {
		f.Add([]byte(strings.Replace(sound, c.old, c.new, 1)))
	}
	for _, name := range []string{"cursor", "page", "offset", "link", "next_url", "keyset", "none"} {
		data, err := os.ReadFile("testdata/valid/" + name + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := pipeline.Parse("p.yaml", data)
		if err != nil {
			var faults pipeline.Faults
			if etl.KindOf(err) != etl.ContractInvalid || !errors.As(err, &faults) || len(faults) == 0 {
				t.Fatalf("no faults in %v", err)
			}
			if n := strings.Count(err.Error(), "\n") + 1; n != len(faults) {
				t.Errorf("%d faults in %d lines", len(faults), n)
			}
			lines := strings.Count(string(data), "\n") + strings.Count(string(data), "\r") + 2
			for i, one := range faults {
				if one.Line < 1 || one.Column < 1 || one.Line > lines || one.What == "" {
					t.Errorf("fault without a place: %+v", one)
				}
				if i > 0 && (faults[i-1].Line > one.Line || faults[i-1].Line == one.Line && faults[i-1].Column > one.Column) {
					t.Errorf("not in the order of the file: %s after %s", one, faults[i-1])
				}
			}
			return
		}
		again, err := pipeline.Parse("p.yaml", data)
		if err != nil || !reflect.DeepEqual(p, again) {
			t.Fatalf("second time %v (%v)", again, err)
		}
		if !etl.ValidPipeline(p.Name) || p.Schedule.Every <= 0 || len(p.Contract.Key) == 0 || p.Target.Table == "" {
			t.Errorf("accepted %+v", p)
		}
		for _, q := range slices.Concat(p.Source.Query, p.Source.Headers, []pipeline.Param{{Value: p.Source.Body}}) {
			if _, err := pipeline.Expand(q.Value, time.Unix(0, 0), etl.Window{}); err != nil {
				t.Errorf("accepted %q: %v", q.Value, err)
			}
		}
	})
}
