package pipeline_test

import (
	"testing"

	"github.com/onceload/onceload/pkg/pipeline"
)

func TestEmbeddedPipelines(t *testing.T) {
	names := pipeline.Names()
	if len(names) == 0 {
		t.Fatal("no embedded pipelines")
	}
	for _, name := range names {
		p, err := pipeline.Find(name)
		if err != nil {
			t.Errorf("%s:\n%v", name, err)
			continue
		}
		if p.Name != name {
			t.Errorf("%s.yaml is the pipeline %s", name, p.Name)
		}
	}
}
