package template_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/template"
)

func TestParse(t *testing.T) {
	values := map[string]string{"AWS::StackName": "shop", "AWS::Region": "eu-west-1"}
	for _, tt := range []struct {
		name, properties string
		want             string
	}{
		{"plain", `{A: 1, B: [x, true, null, 0.5], C: "2012-10-17", D: 'a "b"'}`, `{"A":1,"B":["x",true,null,0.5],"C":"2012-10-17","D":"a \"b\""}`},
		{"block text", "\n      A: |\n        x\n        y", `{"A":"x\ny\n"}`},
		{"sub", `{A: !Sub "${AWS::StackName}-raw-${AWS::Region}"}`, `{"A":"shop-raw-eu-west-1"}`},
		{"sub without quotes", "\n      A: !Sub arn:aws:s3:::${AWS::StackName}/*", `{"A":"arn:aws:s3:::shop/*"}`},
		{"sub of a resource", `{A: !Sub "x-${Bucket}-${Bucket.Arn}"}`, `{"A":"x-${Bucket}-${Bucket.Arn}"}`},
		{"sub escape", `{A: !Sub "${!AWS::StackName}"}`, `{"A":"${!AWS::StackName}"}`},
		{"ref of a pseudo parameter", "\n      A: !Ref AWS::Region", `{"A":"eu-west-1"}`},
		{"ref of a parameter", `{A: !Ref Days}`, `{"A":"30"}`},
		{"ref of a resource", `{A: !Ref Bucket}`, `{"A":"${Bucket}"}`},
		{"getatt", `{A: !GetAtt Bucket.Arn}`, `{"A":"${Bucket.Arn}"}`},
		{"another function", `{A: !If [Yes, !Ref Days, 2]}`, `{"A":{"Fn::If":["Yes","30",2]}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := "Parameters:\n  Days: {Type: Number, Default: 30}\nResources:\n  Thing:\n    Type: AWS::X::Y\n    Properties: " + tt.properties + "\n"
			tmpl, err := template.Parse([]byte(text), values)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(tmpl.Resources["Thing"].Properties); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
	if _, added := values["Days"]; added {
		t.Error("Parse changed its caller's values")
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"no YAML", "a: [", "template: "},
		{"two documents", "A: 1\n---\nB: 2\n", "2 documents"},
		{"a name twice", "Resources:\n  A: {Type: X, Type: Y}\n", "already defined"},
		{"an anchor, which CloudFormation does not read", "Resources:\n  A: &a {Type: X}\n", "line 2, column 6: CloudFormation reads no anchors"},
		{"an alias", "Resources:\n  A: {Type: *a}\n", "line 2, column 13: CloudFormation reads no anchors"},
		{"a merge", "Resources:\n  A:\n    <<: {Type: X}\n", "line 3, column 5: CloudFormation reads no anchors"},
		{"nothing", "", "where a value should be"},
		{"another shape", "Resources: [1]\n", "cannot unmarshal array"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := template.Parse([]byte(tt.text), nil); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestFunctions(t *testing.T) {
	tmpl, err := template.Parse([]byte(`
Globals:
  Function: {Runtime: provided.al2023, Timeout: 5, Environment: {Variables: {A: "1", B: "2"}}}
Resources:
  Two: {Type: AWS::Serverless::Function, Properties: {Timeout: 9, Architectures: [arm64], Environment: {Variables: {B: "3"}}}}
  One: {Type: AWS::Serverless::Function, Properties: {FunctionName: one}}
  Other: {Type: AWS::S3::Bucket}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	functions, err := tmpl.Functions()
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(functions)
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"FunctionName":"one","Handler":"","Runtime":"provided.al2023","Architectures":["x86_64"],"Timeout":5,"Environment":{"Variables":{"A":"1","B":"2"}}},` +
		`{"FunctionName":"","Handler":"","Runtime":"provided.al2023","Architectures":["arm64"],"Timeout":9,"Environment":{"Variables":{"A":"1","B":"3"}}}]`
	if string(got) != want || functions[0].ID != "One" || functions[1].ID != "Two" {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
