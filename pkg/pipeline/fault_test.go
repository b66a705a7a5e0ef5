package pipeline_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/pipeline"
)

// sound is a file without faults; the cases below break it in one place each.
const sound = `pipeline: orders
every: 1h
source:
  url: https://api.example.com/v1/orders
  query: {from: "{window.start}", limit: 500}
  headers: {Accept: application/json}
  auth: {bearer: {secret: token}}
  records: data
  paginate: {cursor: {param: cursor, next: meta.next}}
  retry: {base: 1s, cap: 30s}
contract:
  key: [shop, id]
  version: updated
  fields:
    shop: {type: string, const: eu}
    id: {type: string, required: true}
    total: {type: decimal, min: 0}
    tags: {type: list, items: string}
    day: {type: date}
    paid: {type: boolean}
    items: {type: document}
    updated: {type: timestamp}
checks: {min_records: 1}
target: {table: orders}
`

func TestSoundFile(t *testing.T) {
	if _, err := pipeline.Parse("p.yaml", []byte(sound)); err != nil {
		t.Fatal(err)
	}
}

func TestFaults(t *testing.T) {
	for _, c := range faultCases() {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(sound, c.old) {
				t.Fatalf("%q is not in the sound file", c.old)
			}
			_, err := pipeline.Parse("p.yaml", []byte(strings.Replace(sound, c.old, c.new, 1)))
			if err == nil {
				t.Fatal("no fault found")
			}
			if k := etl.KindOf(err); k != etl.ContractInvalid {
				t.Errorf("kind %s", k)
			}
			if got := strings.ReplaceAll(err.Error(), "p.yaml:", ""); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

type faultCase struct{ name, old, new, want string }

// A file with five typos lists five faults, in the order of the file.
func TestFiveTypos(t *testing.T) {
	r := strings.NewReplacer(
		"every: 1h", "evry: 1h",
		"{window.start}", "{window.begin}",
		"next: meta.next", "nxt: meta.next",
		"type: decimal", "type: decimel",
		"version: updated", "version: updatd",
	)
	_, err := pipeline.Parse("orders.yaml", []byte(r.Replace(sound)))
	var faults pipeline.Faults
	if !errors.As(err, &faults) {
		t.Fatalf("no faults: %v", err)
	}
	want := []string{
		`orders.yaml:2:1: evry: there is no such key; write every instead`,
		`orders.yaml:5:17: source.query.from: {window.begin} is no placeholder; write {window.start}, {window.end} or {slot}, each with :unix, :unix_ms or :date if wanted ({{name}} is the text {name}), instead`,
		`orders.yaml:9:38: source.paginate.cursor.nxt: there is no such key; write next instead`,
		`orders.yaml:13:12: contract.version: "updatd" is not among contract.fields; write updated instead`,
		`orders.yaml:17:19: contract.fields.total.type: "decimel" is not known; write decimal instead`,
	}
	if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", err, strings.Join(want, "\n"))
	}
	if len(faults) != 5 {
		t.Errorf("%d faults", len(faults))
	}
}

// What a person may have pasted by mistake stands in no message.
func TestFaultsHoldNoSecrets(t *testing.T) {
	for _, c := range faultCases() {
		if strings.Contains(c.new, "hunter2") && strings.Contains(c.want, "hunter2") {
			t.Errorf("%s: %s", c.name, c.want)
		}
	}
}

func TestFaultsOfTheWholeFile(t *testing.T) {
	for _, c := range []struct{ name, data, want string }{
		{"empty", "", `p.yaml:1:1: the file is empty; write pipeline: and a name to begin with instead`},
		{"comment alone", "# nothing\n", `p.yaml:1:1: the file is empty; write pipeline: and a name to begin with instead`},
		{"text", "orders", `p.yaml:1:1: a mapping must stand here, not a single value; write a mapping with the keys pipeline, every, lag, lookback, source, contract, quarantine, checks, target instead`},
		{"not UTF-8", "pipeline: orders\nevery: é1\xff", `p.yaml:2:10: the text is not UTF-8; write the file in UTF-8 instead`},
		{"nested too deeply", strings.Repeat("[", 20_000), `p.yaml:1:51: the YAML is nested more than 50 levels deep; write a flatter file instead`},
		{"nested too deeply by dashes", strings.Repeat("- ", 20_000), `p.yaml:1:101: the YAML is nested more than 50 levels deep; write a flatter file instead`},
		{"too large", strings.Repeat("#\n", pipeline.MaxFileBytes/2) + "#", `p.yaml:1:1: the file has more than 262144 bytes; write one pipeline a file instead`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := pipeline.Parse("p.yaml", []byte(c.data))
			if err == nil || err.Error() != c.want {
				t.Errorf("got\n%v\nwant\n%s", err, c.want)
			}
			if etl.KindOf(err) != etl.ContractInvalid {
				t.Errorf("kind %s", etl.KindOf(err))
			}
		})
	}
}
