package cloud

import (
	"context"
	"log/slog"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/lambdafn"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store"
	storecloud "github.com/onceload/onceload/pkg/store/cloud"
)

// Function makes the handler of the stage's function, its configuration and its clients from the environment. It asks
// nothing of AWS yet.
func Function(ctx context.Context, s etl.Stage, lookup func(string) (string, bool), log *slog.Logger) (lambda.Handler, error) {
	c, err := ParseConfig(lookup)
	if err != nil {
		return nil, err
	}
	d, err := Deps(ctx, c, log)
	if err != nil {
		return nil, err
	}
	return Handler(s, stage.New(d), c.Stores.RawBucket, log), nil
}

// Handler is the stage's function over stages that are wired: the stage's payloads, for Transform the arrivals of objects
// in the raw bucket, for Settle the ends of executions.
func Handler(s etl.Stage, stages *stage.Stages, rawBucket string, log *slog.Logger) lambda.Handler {
	h := lambdafn.Handler(stages.Handlers()[s])
	switch s {
	case etl.StageTransform:
		h = lambdafn.Arrivals{Bucket: rawBucket, Landed: stages.Transform.Landed, Log: log}.Or(h)
	case etl.StageSettle:
		h = lambdafn.Ends{Ended: stages.Settle.Ended, Log: log}.Or(h)
	}
	return lambdafn.Wrap(h, lambdafn.Options{Log: log, WithRequestID: stage.WithRequestID})
}

// Deps wires AWS into what the stages need.
func Deps(ctx context.Context, c Config, log *slog.Logger) (stage.Deps, error) {
	cfg, err := storecloud.Load(ctx)
	if err != nil {
		return stage.Deps{}, err
	}
	stores := storecloud.Open(cfg, c.Stores)
	executions := NewExecutions(cfg)
	d := stage.Deps{
		Raw: stores.Raw, Stage: stores.Stage, Ledger: &ledger.Ledger{Table: stores.Ledger(ledger.Schema())},
		Target: func(_ context.Context, p *pipeline.Pipeline) (store.Table, error) {
			return stores.Target(store.Schema{Name: p.Target.Table, SortKey: len(p.Target.Sort) > 0}), nil
		},
		Pipelines: embedded,
		Liveness:  executions, Executions: executions, Secrets: NewSecrets(cfg, c.SecretPrefix),
		Log: log, Margin: c.Margin,
	}
	if c.AlertsTopic != "" {
		d.Alerts = NewAlerts(cfg, c.AlertsTopic)
	}
	return d, nil
}

// embedded finds a pipeline of the binary. A name that could be a path is none.
func embedded(name string) (*pipeline.Pipeline, error) {
	if !etl.ValidPipeline(name) {
		return nil, etl.Errorf(etl.Usage, "%q is not a pipeline name", name)
	}
	return pipeline.Find(name)
}
