package local

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/asl"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/runner"
	"github.com/onceload/onceload/pkg/store/disk"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newLocks(t *testing.T, dir string) *locks {
	t.Helper()
	db, err := disk.OpenDB(t.Context(), filepath.Join(dir, "onceload.db"))
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	h, err := openHistory(t.Context(), db.SQL())
	must(t, err)
	return &locks{dir: dir, history: h}
}

// TestLockRace: an execution is never held twice, however often it is held, let go, and asked after meanwhile. R20
func TestLockRace(t *testing.T) {
	l := newLocks(t, t.TempDir())
	must(t, l.history.reserve(t.Context(), "x", "shop/20261130T000000Z", origin{}))
	const rounds = 300
	var holders, held atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range rounds {
				release, err := l.hold("x")
				if err != nil {
					if etl.KindOf(err) != etl.Busy {
						t.Errorf("hold: %v", err)
					}
					continue
				}
				held.Add(1)
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d holders", n)
				}
				if live, err := l.Alive(t.Context(), "x"); err != nil || live != ledger.Running {
					t.Errorf("alive while held: %d, %v", live, err)
				}
				holders.Add(-1)
				if err := release(); err != nil {
					t.Errorf("release: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if held.Load() == 0 {
		t.Error("nobody ever held it")
	}
}

// TestAlive: who is alive. R20
func TestAlive(t *testing.T) {
	l := newLocks(t, t.TempDir())
	alive := func(want ledger.Liveness) {
		t.Helper()
		if got, err := l.Alive(t.Context(), "local:shop:1"); err != nil || got != want {
			t.Errorf("%d, %v, want %d", got, err, want)
		}
	}
	alive(ledger.Unknown)
	release, err := l.hold("local:shop:1")
	must(t, err)
	alive(ledger.Unknown) // nobody could own a batch yet
	must(t, l.history.reserve(t.Context(), "local:shop:1", "shop/20261130T000000Z", origin{}))
	alive(ledger.Running)
	alive(ledger.Running) // asking takes nothing away
	if _, err := l.hold("local:shop:1"); etl.KindOf(err) != etl.Busy {
		t.Errorf("held twice: %v", err)
	}
	must(t, release())
	alive(ledger.Ended)
	// What a dead process leaves behind: the file, and no lock on it.
	must(t, os.WriteFile(l.path("local:shop:1"), nil, 0o600))
	alive(ledger.Ended)
	release, err = l.hold("local:shop:1")
	must(t, err)
	alive(ledger.Running)
	must(t, release())
	if left, err := filepath.Glob(filepath.Join(l.dir, "*.lock")); err != nil || len(left) > 0 {
		t.Errorf("files left: %v, %v", left, err)
	}
	// Doubt is an error, never Ended.
	if err := os.Mkdir(l.path("local:shop:1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := l.Alive(t.Context(), "local:shop:1"); err == nil || got == ledger.Ended {
		t.Errorf("%d, %v", got, err)
	}
}

// TestLockHolder holds a lock until it is killed; it is the child of TestKilledHolder.
func TestLockHolder(t *testing.T) {
	dir := os.Getenv("ONCELOAD_TEST_LOCK")
	if dir == "" {
		t.Skip("only as a child of TestKilledHolder")
	}
	_, err := (&locks{dir: dir}).hold("x")
	must(t, err)
	fmt.Println("held")
	time.Sleep(time.Minute)
}

// TestKilledHolder: the lock of a process that is killed is free at once. R20
func TestKilledHolder(t *testing.T) {
	l := newLocks(t, t.TempDir())
	must(t, l.history.reserve(t.Context(), "x", "shop/20261130T000000Z", origin{}))
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLockHolder$", "-test.v")
	child.Env = append(os.Environ(), "ONCELOAD_TEST_LOCK="+l.dir)
	out, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	var text strings.Builder
	buf := make([]byte, 256)
	for !strings.Contains(text.String(), "held") {
		n, err := out.Read(buf)
		text.Write(buf[:n])
		must(t, err)
	}
	if got, err := l.Alive(t.Context(), "x"); err != nil || got != ledger.Running {
		t.Errorf("%d, %v", got, err)
	}
	must(t, child.Process.Kill())
	_ = child.Wait() // it was killed, and says so
	if got, err := l.Alive(t.Context(), "x"); err != nil || got != ledger.Ended {
		t.Errorf("%d, %v", got, err)
	}
	release, err := l.hold("x")
	must(t, err)
	must(t, release())
}

// TestSecrets: where a secret may stand, and what is said when it does not.
func TestSecrets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(file, []byte(" from a file \r\n\n"), 0o600))
	env := map[string]string{
		"ONCELOAD_SECRET_ORDERS_API_TOKEN": "value\n", "ONCELOAD_SECRET_EMPTY": "", "ONCELOAD_SECRET_B_FILE": file,
		"ONCELOAD_SECRET_BOTH": "value", "ONCELOAD_SECRET_BOTH_FILE": file, "ONCELOAD_SECRET_GONE_FILE": file + ".gone",
	}
	e := environment{func(name string) (string, bool) { v, ok := env[name]; return v, ok }}
	for name, want := range map[string]string{"orders-api.token": "value\n", "empty": "", "b": " from a file ", "both": "value"} {
		if got, err := e.Secret(t.Context(), name); err != nil || got != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for name, says := range map[string]string{"none-such": "ONCELOAD_SECRET_NONE_SUCH_FILE", "gone": "secret.gone"} {
		if _, err := e.Secret(t.Context(), name); etl.KindOf(err) != etl.SourceRejected || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHistory: what is stored comes back as it was, in order, and each execution has its own. R28
func TestHistory(t *testing.T) {
	dir := t.TempDir()
	h := newLocks(t, dir).history
	at := time.Date(2026, 11, 30, 10, 0, 0, 123456789, time.UTC)
	e := runner.Execution{ID: "x", Batch: "shop/20261130T000000Z", Input: []byte(`{"pipeline":"shop"}`), StartTime: at, Definition: []byte(`{"é":1}`)}
	must(t, h.reserve(t.Context(), "x", e.Batch, origin{"shop.yaml", "http://127.0.0.1"}))
	if _, _, err := h.Load(t.Context(), "x"); etl.KindOf(err) != etl.Usage {
		t.Errorf("before it began: %v", err)
	}
	must(t, h.Begin(t.Context(), e))
	var want []asl.Event
	for i := range 12 { // ids sort as numbers, not as texts
		ev := asl.Event{ID: int64(i + 1), Time: at.Add(time.Duration(i)), Type: asl.TaskFailed, State: "Load", Path: "Load/3",
			Input: []byte(`{"a":[1,2.50]}`), Output: []byte(`{}`), Error: "E", Cause: "because <&>", Attempt: i}
		want = append(want, ev)
		must(t, h.Append(t.Context(), "x", ev))
		must(t, h.reserve(t.Context(), fmt.Sprint("y", i), e.Batch, origin{}))
		must(t, h.Append(t.Context(), fmt.Sprint("y", i), ev))
	}
	if err := h.Append(t.Context(), "x", want[3]); etl.KindOf(err) != etl.StoreUnavailable {
		t.Errorf("an event twice: %v", err)
	}
	got, events, err := newLocks(t, dir).history.Load(t.Context(), "x")
	must(t, err)
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", e) || fmt.Sprintf("%+v", events) != fmt.Sprintf("%+v", want) {
		t.Errorf("%+v\n%+v", got, events)
	}
	if o, known, err := h.origin(t.Context(), "x"); err != nil || !known || o != (origin{"shop.yaml", "http://127.0.0.1"}) {
		t.Errorf("%+v %v %v", o, known, err)
	}
	if _, known, err := h.origin(t.Context(), "z"); err != nil || known {
		t.Errorf("%v %v", known, err)
	}
	if _, _, err := h.Load(t.Context(), "z"); etl.KindOf(err) != etl.Usage {
		t.Errorf("unknown: %v", err)
	}
}
