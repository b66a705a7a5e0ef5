package template_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/cloud"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/machine"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/template"
)

// What template.yaml says, held against the code.

const (
	rawBucket   = "shop-raw-111122223333-eu-west-1"
	stageBucket = "shop-stage-111122223333-eu-west-1"
)

func project(t testing.TB) *template.Template {
	t.Helper()
	data, err := os.ReadFile("../../template.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := template.Parse(data, map[string]string{
		"AWS::StackName": "shop", "AWS::AccountId": "111122223333", "AWS::Region": "eu-west-1", "AWS::Partition": "aws",
	})
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

func decode[T any](t testing.TB, tmpl *template.Template, id string) T {
	t.Helper()
	var v T
	if _, ok := tmpl.Resources[id]; !ok {
		t.Fatalf("template.yaml has no %s", id)
	}
	if err := tmpl.Decode(id, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// list is one value or several.
type list []string

func (l *list) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*l = list{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(l))
}

type statement struct {
	Effect           string
	Action, Resource list
}

type function struct {
	Policies []struct{ Statement []statement }
	Events   map[string]struct {
		Type       string
		Properties struct {
			Bucket string
			Events list
			Filter struct {
				S3Key struct {
					Rules []struct{ Name, Value string }
				}
			}
			Pattern struct {
				Source     list
				DetailType list `json:"detail-type"`
				Detail     struct{ Status, StateMachineArn list }
			}
		}
	}
	EventInvokeConfig struct {
		DestinationConfig struct{ OnFailure struct{ Destination string } }
	}
}

type stateMachine struct {
	Name, Type, DefinitionURI string
	DefinitionSubstitutions   map[string]string
	Policies                  []struct{ Statement []statement }
	Events                    map[string]struct {
		Type       string
		Properties struct {
			Name, ScheduleExpression, ScheduleExpressionTimezone, State, Input string
			DeadLetterConfig                                                   struct{ Arn string }
		}
	}
}

// id is the logical id of a stage's function.
func id(s etl.Stage) string { return strings.ToUpper(string(s[:1])) + string(s[1:]) + "Function" }

var stages = []etl.Stage{etl.StageExtract, etl.StageTransform, etl.StageGate, etl.StageLoad, etl.StageSettle}

func TestFunctionsAreTheStages(t *testing.T) {
	tmpl := project(t)
	functions, err := tmpl.Functions()
	if err != nil {
		t.Fatal(err)
	}
	if len(functions) != len(stages) {
		t.Errorf("%d functions, want %d", len(functions), len(stages))
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stages {
		i := slices.IndexFunc(functions, func(f template.Function) bool { return f.ID == id(s) })
		if i < 0 {
			t.Errorf("template.yaml has no %s", id(s))
			continue
		}
		f := functions[i]
		if f.FunctionName != "shop-"+string(s) || f.Handler != "bootstrap" || f.Runtime != "provided.al2023" || f.Timeout < 60 || f.Timeout > 900 {
			t.Errorf("%s: %+v", f.ID, f)
		}
		if tmpl.Resources[f.ID].Metadata["BuildMethod"] != "makefile" || !strings.Contains(string(makefile), "build-"+f.ID) {
			t.Errorf("%s is not built by the Makefile", f.ID)
		}
		if _, err := os.Stat("../../functions/" + string(s) + "/main.go"); err != nil {
			t.Error(err)
		}
	}
}

// TestEnvironment holds the functions' variables against those that package cloud reads: no more, and no fewer but for the
// ones left at their defaults.
func TestEnvironment(t *testing.T) {
	defaults := []string{cloud.EnvMargin}
	functions, err := project(t).Functions()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range functions {
		asked := map[string]bool{}
		c, err := cloud.ParseConfig(func(name string) (string, bool) {
			asked[name] = true
			v, ok := f.Environment.Variables[name]
			if !ok && !slices.Contains(defaults, name) {
				t.Errorf("%s has no %s", f.ID, name)
			}
			return v, ok
		})
		if err != nil {
			t.Errorf("%s: %v", f.ID, err)
		}
		for name := range f.Environment.Variables {
			if !asked[name] {
				t.Errorf("%s: nothing reads %s", f.ID, name)
			}
		}
		if c.Stores.RawBucket != rawBucket || c.Stores.StageBucket != stageBucket || c.Stores.LedgerTable != "shop-ledger" ||
			c.Stores.TargetPrefix != "shop-target-" || c.SecretPrefix != "shop/" ||
			c.AlertsTopic != "arn:aws:sns:eu-west-1:111122223333:shop-alerts" {
			t.Errorf("%s: %+v", f.ID, c)
		}
	}
}

func TestBuckets(t *testing.T) { // R22
	type bucket struct {
		BucketName                     string
		BucketEncryption               struct{ ServerSideEncryptionConfiguration []any }
		PublicAccessBlockConfiguration struct{ BlockPublicAcls, BlockPublicPolicy, IgnorePublicAcls, RestrictPublicBuckets bool }
		LifecycleConfiguration         struct {
			Rules []struct {
				Status                         string
				Prefix                         string
				ExpirationInDays               int
				AbortIncompleteMultipartUpload *struct{ DaysAfterInitiation int }
			}
		}
	}
	tmpl := project(t)
	days := map[string]int{}
	for _, id := range tmpl.OfType("AWS::S3::Bucket") {
		b := decode[bucket](t, tmpl, id)
		if len(b.BucketEncryption.ServerSideEncryptionConfiguration) == 0 {
			t.Errorf("%s is not encrypted", id)
		}
		if p := b.PublicAccessBlockConfiguration; !p.BlockPublicAcls || !p.BlockPublicPolicy || !p.IgnorePublicAcls || !p.RestrictPublicBuckets {
			t.Errorf("%s may become public", id)
		}
		aborts := false
		for _, r := range b.LifecycleConfiguration.Rules {
			if r.Status != "Enabled" || r.Prefix != "" {
				t.Errorf("%s: a rule that does not hold for every object: %+v", id, r)
			}
			if r.ExpirationInDays > 0 {
				days[b.BucketName] = r.ExpirationInDays
			}
			aborts = aborts || r.AbortIncompleteMultipartUpload != nil
		}
		if !aborts {
			t.Errorf("%s keeps uploads that were broken off", id)
		}
	}
	raw, stage := days[rawBucket], days[stageBucket]
	if len(days) != 2 || stage < 30 || raw < 90 || raw <= stage {
		t.Errorf("objects expire after %v days: want two buckets, stage at least 30, raw at least 90 and more than stage", days)
	}
}

// table is a table as the template describes it.
type table struct {
	TableName               string
	BillingMode             string
	TimeToLiveSpecification any
	AttributeDefinitions    []struct{ AttributeName, AttributeType string }
	KeySchema               keySchema
	GlobalSecondaryIndexes  []struct {
		IndexName  string
		KeySchema  keySchema
		Projection struct{ ProjectionType string }
	}
}

type keySchema []struct{ AttributeName, KeyType string }

func keys(pk, sk string) string {
	if sk == "" {
		return fmt.Sprint(keySchema{{pk, "HASH"}})
	}
	return fmt.Sprint(keySchema{{pk, "HASH"}, {sk, "RANGE"}})
}

func TestTables(t *testing.T) {
	tmpl := project(t)
	tables := map[string]table{}
	for _, id := range tmpl.OfType("AWS::DynamoDB::Table") {
		d := decode[table](t, tmpl, id)
		tables[d.TableName] = d
	}
	schemas := map[string]store.Schema{"shop-ledger": ledger.Schema()}
	for _, name := range pipeline.Names() {
		p, err := pipeline.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		schemas["shop-target-"+p.Target.Table] = store.Schema{SortKey: len(p.Target.Sort) > 0}
	}
	for name := range tables {
		if _, ok := schemas[name]; !ok {
			t.Errorf("no pipeline has the table %s", name)
		}
	}
	for name, s := range schemas {
		d, ok := tables[name]
		if !ok {
			t.Errorf("template.yaml has no table %s: copy OrdersTable", name)
			continue
		}
		used := map[string]bool{store.PKName: true}
		sk := ""
		if s.SortKey {
			sk = store.SKName
			used[sk] = true
		}
		if got := fmt.Sprint(d.KeySchema); got != keys(store.PKName, sk) {
			t.Errorf("%s: keys %s, want %s", name, got, keys(store.PKName, sk))
		}
		if len(d.GlobalSecondaryIndexes) != len(s.Indexes) {
			t.Errorf("%s has %d indexes, want %d", name, len(d.GlobalSecondaryIndexes), len(s.Indexes))
			continue
		}
		for i, x := range s.Indexes {
			g := d.GlobalSecondaryIndexes[i]
			used[x.PK], used[x.SK] = true, true
			if g.IndexName != x.Name || fmt.Sprint(g.KeySchema) != keys(x.PK, x.SK) || g.Projection.ProjectionType != "ALL" {
				t.Errorf("%s: index %+v, want %+v", name, g, x)
			}
		}
		defined := map[string]bool{}
		for _, a := range d.AttributeDefinitions {
			defined[a.AttributeName] = a.AttributeType == "S"
		}
		if !maps.Equal(defined, used) {
			t.Errorf("%s defines %v, want %v as S", name, defined, used)
		}
		if d.BillingMode != "PAY_PER_REQUEST" || d.TimeToLiveSpecification != nil {
			t.Errorf("%s: billing %s, time to live %v", name, d.BillingMode, d.TimeToLiveSpecification)
		}
	}
}

func TestStateMachine(t *testing.T) { // R27
	tmpl := project(t)
	m := decode[stateMachine](t, tmpl, "StateMachine")
	if m.Name != "shop" || m.Type != "STANDARD" || m.DefinitionURI != "pkg/machine/onceload.asl.json" {
		t.Errorf("%s %s %s", m.Name, m.Type, m.DefinitionURI)
	}
	if _, err := machine.Substitute(machine.Definition(), m.DefinitionSubstitutions); err != nil {
		t.Error(err)
	}
	var arns []string
	for _, s := range stages {
		// The function's own ARN, without a version: a redriven execution keeps its definition, and must get a fix of the code.
		arn := "${" + id(s) + ".Arn}"
		arns = append(arns, arn)
		if got := m.DefinitionSubstitutions[id(s)+"Arn"]; got != arn {
			t.Errorf("%s is %s, want %s", id(s), got, arn)
		}
	}
	for _, p := range m.Policies {
		for _, s := range p.Statement {
			if !slices.Equal(s.Action, list{"lambda:InvokeFunction"}) || !slices.Equal(s.Resource, arns) {
				t.Errorf("the state machine may %v on %v", s.Action, s.Resource)
			}
		}
	}
}

// ours is a resource of this stack, by its name: the service's path to it, the name, and what of it.
var ours = regexp.MustCompile(`^arn:aws:(?:s3:::|(?:dynamodb|states|sns|secretsmanager):eu-west-1:111122223333:)(?:table/|execution:|secret:)?` +
	`(shop(?:-raw-111122223333-eu-west-1|-stage-111122223333-eu-west-1|-ledger|-target-|-alerts|/|))(?:/raw/\*|/valid/\*|/quarantine/\*|:\*|\*|)$`)

// permissions is which functions may do what, by action and name of the resource. Each is on resources of this stack.
func permissions(t testing.TB) map[string]map[etl.Stage]bool {
	t.Helper()
	tmpl := project(t)
	may := map[string]map[etl.Stage]bool{}
	for _, s := range stages {
		for _, p := range decode[function](t, tmpl, id(s)).Policies {
			for _, st := range p.Statement {
				for _, a := range st.Action {
					if strings.Contains(a, "*") || st.Effect != "Allow" {
						t.Errorf("%s: %s %s", id(s), st.Effect, a)
					}
					for _, r := range st.Resource {
						m := ours.FindStringSubmatch(r)
						if m == nil {
							t.Errorf("%s may %s on %s: not a resource of this stack by its name", id(s), a, r)
							continue
						}
						key := a + " " + m[1]
						if may[key] == nil {
							may[key] = map[etl.Stage]bool{}
						}
						may[key][s] = true
					}
				}
			}
		}
	}
	return may
}

func TestEvents(t *testing.T) { // R29
	tmpl := project(t)
	e := decode[function](t, tmpl, id(etl.StageTransform)).Events["Landed"]
	if e.Type != "S3" || e.Properties.Bucket != "${RawBucket}" || !slices.Equal(e.Properties.Events, list{"s3:ObjectCreated:*"}) {
		t.Errorf("Landed: %+v", e)
	}
	rules := map[string]string{}
	for _, r := range e.Properties.Filter.S3Key.Rules {
		rules[r.Name] = r.Value
	}
	b := etl.Batch{Pipeline: "orders", Slot: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)}
	for key, want := range map[string]bool{
		etl.RawPartKey(b, 1, 0):             true,
		etl.ManifestKey(b, 1):               false,
		etl.RejectedKey(b, 1, "00000-0.gz"): false,
	} {
		if got := strings.HasPrefix(key, rules["prefix"]) && strings.HasSuffix(key, rules["suffix"]); got != want || len(rules) != 2 {
			t.Errorf("%s triggers Transform: %v, want %v", key, got, want)
		}
	}

	p := decode[function](t, tmpl, id(etl.StageSettle)).Events["Ended"].Properties.Pattern
	if !slices.Equal(p.Source, list{"aws.states"}) || !slices.Equal(p.DetailType, list{"Step Functions Execution Status Change"}) ||
		!slices.Equal(p.Detail.Status, list{"FAILED", "TIMED_OUT", "ABORTED"}) ||
		!slices.Equal(p.Detail.StateMachineArn, list{"arn:aws:states:eu-west-1:111122223333:stateMachine:shop"}) {
		t.Errorf("Ended: %+v", p)
	}
	for _, s := range []etl.Stage{etl.StageTransform, etl.StageSettle} {
		if got := decode[function](t, tmpl, id(s)).EventInvokeConfig.DestinationConfig.OnFailure.Destination; got != "${DeadLetters.Arn}" {
			t.Errorf("%s loses events that keep failing: they go to %q", id(s), got)
		}
	}
}

// TestNoCircle: the raw bucket needs Transform, so nothing that a function is made of may need a bucket.
func TestNoCircle(t *testing.T) {
	tmpl := project(t)
	for _, s := range stages {
		var p map[string]json.RawMessage
		if err := tmpl.Decode(id(s), &p); err != nil {
			t.Fatal(err)
		}
		delete(p, "Events") // become resources of their own
		p["Globals"] = tmpl.Globals.Function
		for name, text := range p {
			for _, bucket := range tmpl.OfType("AWS::S3::Bucket") {
				if strings.Contains(string(text), "${"+bucket) {
					t.Errorf("%s: %s refers to %s: use its name", id(s), name, bucket)
				}
			}
		}
	}
}
