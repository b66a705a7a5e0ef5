package etl_test

import (
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
)

// TestCheckClosed: a window is over at its end, not before. R13
func TestCheckClosed(t *testing.T) {
	s := etl.Schedule{Every: time.Hour, Lookback: time.Hour}
	slot := time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)
	end := slot.Add(time.Hour)
	if err := s.CheckClosed(slot, end.Add(-time.Nanosecond)); etl.KindOf(err) != etl.Usage {
		t.Errorf("before its end: %v", err)
	}
	if err := s.CheckClosed(slot, end); err != nil {
		t.Errorf("at its end: %v", err)
	}
}
