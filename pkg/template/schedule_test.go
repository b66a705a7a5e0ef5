package template_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/pipeline"
)

// cron is EventBridge Scheduler's expression, in UTC, for the moments at which a slot's window has been closed for the lag.
func cron(t testing.TB, s etl.Schedule) string {
	t.Helper()
	fields := [3]map[int]bool{{}, {}, {}} // minutes, hours, weekdays
	fires := 0
	monday := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for at := monday; at.Before(monday.AddDate(0, 0, 7)); at = at.Add(time.Minute) {
		if end := at.Add(-s.Lag); s.Floor(end).Equal(end) {
			fires++
			fields[0][at.Minute()], fields[1][at.Hour()], fields[2][int(at.Weekday())] = true, true, true
		}
	}
	// The expression fires at every combination, so it is right only if each is meant.
	if fires != len(fields[0])*len(fields[1])*len(fields[2]) {
		t.Fatalf("no single expression fires every %v, %v late", s.Every, s.Lag)
	}
	list := func(set map[int]bool, all int, text func(int) string) string {
		if len(set) == all {
			return "*"
		}
		var out []string
		for n := range all {
			if set[n] {
				out = append(out, text(n))
			}
		}
		return strings.Join(out, ",")
	}
	days := "* * ?"
	if names := list(fields[2], 7, func(n int) string { return strings.ToUpper(time.Weekday(n).String()[:3]) }); names != "*" {
		days = "? * " + names
	}
	return fmt.Sprintf("cron(%s %s %s *)", list(fields[0], 60, strconv.Itoa), list(fields[1], 24, strconv.Itoa), days)
}

func TestCron(t *testing.T) { // R26
	const h, d = time.Hour, 24 * time.Hour
	for _, tt := range []struct {
		every, lag time.Duration
		want       string
	}{
		{h, 0, "cron(0 * * * ? *)"},
		{h, 5 * time.Minute, "cron(5 * * * ? *)"},
		{h, h + 5*time.Minute, "cron(5 * * * ? *)"},
		{15 * time.Minute, 5 * time.Minute, "cron(5,20,35,50 * * * ? *)"},
		{time.Minute, 3 * time.Minute, "cron(* * * * ? *)"},
		{6 * h, 7*h + 30*time.Minute, "cron(30 1,7,13,19 * * ? *)"},
		{d, h, "cron(0 1 * * ? *)"},
		{d, 25*h + time.Minute, "cron(1 1 * * ? *)"},
		{7 * d, h, "cron(0 1 ? * MON *)"},
		{7 * d, 26 * h, "cron(0 2 ? * TUE *)"},
	} {
		if got := cron(t, etl.Schedule{Every: tt.every, Lag: tt.lag}); got != tt.want {
			t.Errorf("every %v, lag %v: got %s, want %s", tt.every, tt.lag, got, tt.want)
		}
	}
}

func TestSchedules(t *testing.T) { // R26
	tmpl := project(t)
	m := decode[stateMachine](t, tmpl, "StateMachine")
	scheduled := map[string]bool{}
	for name, e := range m.Events {
		p := e.Properties
		if e.Type != "ScheduleV2" || p.ScheduleExpressionTimezone != "UTC" || p.DeadLetterConfig.Arn != "${DeadLetters.Arn}" {
			t.Errorf("%s: %+v", name, e)
		}
		param, ok := tmpl.Parameters[name+"Schedule"]
		if !ok || param.Default != "DISABLED" || p.State != "DISABLED" {
			t.Errorf("%s: its state is %q; it must come from the parameter %sSchedule, which is DISABLED by default", name, p.State, name)
		}
		const at = "2026-11-30T11:05:00Z"
		if strings.Count(p.Input, "<aws.scheduler.scheduled-time>") != 1 {
			t.Errorf("%s: input %s", name, p.Input)
		}
		// What Scheduler makes of it is what the state machine hands to Extract.
		req, err := etl.Decode[etl.Request]([]byte(strings.ReplaceAll(p.Input, "<aws.scheduler.scheduled-time>", at)))
		if err != nil || req.ScheduledTime != at {
			t.Errorf("%s: input %s: %+v, %v", name, p.Input, req, err)
			continue
		}
		file, err := pipeline.Find(req.Pipeline)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		scheduled[file.Name] = true
		if want := cron(t, file.Schedule); p.ScheduleExpression != want || p.Name != "shop-"+file.Name {
			t.Errorf("%s: %s fires at %s: every and lag of the file want %s", name, p.Name, p.ScheduleExpression, want)
		}
	}
	for _, name := range pipeline.Names() {
		if !scheduled[name] {
			t.Errorf("template.yaml has no schedule for %s: copy that of orders", name)
		}
	}
	if len(m.Events) != len(scheduled) || !slices.Contains(pipeline.Names(), "orders") {
		t.Errorf("%d schedules for %d pipelines", len(m.Events), len(scheduled))
	}
}
