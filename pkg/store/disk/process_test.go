package disk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/disk"
)

// The variables that make the test binary one of several writers over one home, until it is killed.
const (
	writerHome = "ONCELOAD_TEST_WRITER_HOME"
	writerID   = "ONCELOAD_TEST_WRITER_ID"
)

func TestMain(m *testing.M) {
	if home := os.Getenv(writerHome); home != "" {
		if err := writer(context.Background(), home, os.Getenv(writerID)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const contested = 60 // keys each writer goes through, again and again

// body is whole only if it is n repeated to its declared length.
func body(id string, n int) []byte { return bytes.Repeat([]byte(id+";"), 3_000+n) }

func writer(ctx context.Context, home, id string) error {
	objects, err := disk.OpenObjects(filepath.Join(home, "raw"))
	if err != nil {
		return err
	}
	db, err := disk.OpenDB(ctx, filepath.Join(home, "onceload.db"))
	if err != nil {
		return err
	}
	table, err := db.Table(ctx, store.Schema{Name: "orders"})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for round := 0; ; round++ {
		for k := range contested {
			err := objects.PutOnce(ctx, fmt.Sprintf("once/%d/%03d", k%7, k), body(id, k))
			if err == nil {
				fmt.Printf("won %03d\n", k)
			} else if !errors.Is(err, store.ErrExists) {
				return err
			}
			if err := objects.Put(ctx, fmt.Sprintf("put/%d/%03d", k%7, k), bytes.NewReader(body(id, k))); err != nil {
				return err
			}
			items := make([]store.Item, 40)
			rank := fmt.Sprintf("%s.%06d", id, round)
			for i := range items {
				items[i] = store.Item{Key: store.Key{PK: fmt.Sprintf("%03d-%02d", k, (i*7)%40)}, Rank: rank, Doc: []byte(`{"rank":"` + rank + `"}`)}
			}
			if _, err := table.PutHigher(ctx, items); err != nil {
				return err
			}
		}
	}
}

// TestKilledWriters lets processes write the same keys and kills them with SIGKILL, wave after wave.
func TestKilledWriters(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	winners := map[string][]string{}
	for wave := range 3 {
		var commands []*exec.Cmd
		var outs []*bytes.Buffer
		for w := range 3 {
			id := strconv.Itoa(wave*3 + w)
			cmd := exec.Command(exe)
			cmd.Env = append(os.Environ(), writerHome+"="+home, writerID+"="+id)
			out := &bytes.Buffer{}
			cmd.Stdout, cmd.Stderr = out, out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			commands, outs = append(commands, cmd), append(outs, out)
		}
		for _, cmd := range commands {
			time.Sleep(time.Duration(100+random.IntN(200)) * time.Millisecond)
			if err := cmd.Process.Kill(); err != nil {
				t.Errorf("a writer ended before it was killed: %v", err)
			}
		}
		for w, cmd := range commands {
			if err := cmd.Wait(); err == nil || cmd.ProcessState.Exited() {
				t.Fatalf("a writer failed: %v\n%s", err, outs[w])
			}
			for line := range strings.Lines(outs[w].String()) {
				if key, ok := strings.CutPrefix(strings.TrimSpace(line), "won "); ok {
					winners[key] = append(winners[key], strconv.Itoa(wave*3+w))
				}
			}
		}
	}

	objects, err := disk.OpenObjects(filepath.Join(home, "raw"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for info, err := range objects.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		seen++
		n, err := strconv.Atoi(info.Key[len(info.Key)-3:])
		if err != nil {
			t.Errorf("listed %q, which nobody wrote", info.Key)
			continue
		}
		r, err := objects.Get(t.Context(), info.Key)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil {
			t.Fatal(err)
		}
		id, _, _ := strings.Cut(string(got[:min(len(got), 10)]), ";")
		if !bytes.Equal(got, body(id, n)) {
			t.Errorf("%s holds %d bytes that no writer put whole", info.Key, len(got))
		}
		if won := winners[info.Key[len(info.Key)-3:]]; strings.HasPrefix(info.Key, "once/") {
			// A killed winner may not have said so; nobody else may have.
			if len(won) > 1 || (len(won) == 1 && won[0] != id) {
				t.Errorf("%s holds the body of %s, winners %v", info.Key, id, won)
			}
		}
	}
	if seen == 0 {
		t.Error("no writer wrote anything")
	}

	db := openDB(t, home)
	table, err := db.Table(t.Context(), store.Schema{Name: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	var check string
	if err := db.SQL().QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&check); err != nil || check != "ok" {
		t.Fatalf("integrity check: %s, %v", check, err)
	}
	for k := range contested {
		ranks := map[string]bool{}
		for i := range 40 {
			item, err := table.Get(t.Context(), store.Key{PK: fmt.Sprintf("%03d-%02d", k, i)})
			if err != nil && !errors.Is(err, store.ErrNotFound) {
				t.Fatal(err)
			}
			if err == nil && string(item.Doc) != `{"rank":"`+item.Rank+`"}` {
				t.Errorf("row %s has rank %s and document %s", item.PK, item.Rank, item.Doc)
			}
			ranks[item.Rank] = true
		}
		if len(ranks) != 1 {
			t.Errorf("rows %03d of one transaction have ranks %v", k, ranks)
		}
	}
}
