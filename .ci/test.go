// Command test runs `go test -json` with its arguments, shows what failed and a line for each package, and at the end
// every test that was skipped with the reason it gave. It fails if a test fails or is skipped without a reason; with
// ONCELOAD_TEST_ALL set, if one is skipped at all.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

// event is what `go test -json` (test2json) and the build print, a line each.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
	Elapsed    float64
}

// framing is what the testing package prints around a test's own words.
var framing = regexp.MustCompile(`^\s*(=== |--- )`)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	skips, mute := show(bufio.NewReader(out))
	if len(skips) > 0 {
		fmt.Printf("\nskipped, and why:\n%s\n", strings.Join(skips, "\n"))
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	if len(mute) > 0 {
		return fmt.Errorf("skipped without a reason: %s", strings.Join(mute, ", "))
	}
	if len(skips) > 0 && os.Getenv("ONCELOAD_TEST_ALL") != "" {
		return fmt.Errorf("%d skipped, and none may be", len(skips))
	}
	return nil
}

// show prints the results as they come and returns the skipped tests: those that say why, and those that do not.
func show(lines *bufio.Reader) (skips, mute []string) {
	said := map[string][]string{} // output by package and test
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) == 0 && err != nil {
			return skips, mute
		}
		var e event
		if json.Unmarshal(line, &e) != nil {
			fmt.Printf("%s", line)
			continue
		}
		id := e.Package + " " + e.Test
		switch {
		case e.Action == "build-output":
			fmt.Print(e.Output)
		case e.Action == "output":
			said[id] = append(said[id], e.Output)
		case e.Action == "fail":
			fmt.Print(strings.Join(said[id], ""))
		case e.Test == "" && e.Action == "pass":
			fmt.Printf("ok   %-58s %6.1f s\n", e.Package, e.Elapsed)
		case e.Test == "" && e.Action == "skip":
			fmt.Printf("     %-58s no tests\n", e.Package)
		case e.Action == "skip":
			var reason []string
			for _, s := range said[id] {
				if !framing.MatchString(s) {
					reason = append(reason, strings.TrimSpace(s))
				}
			}
			if len(reason) == 0 || strings.HasSuffix(reason[len(reason)-1], ":") {
				mute = append(mute, e.Package+"."+e.Test)
				break
			}
			skips = append(skips, fmt.Sprintf("  %s.%s: %s", e.Package, e.Test, strings.Join(reason, " ")))
		}
		if e.Action == "pass" || e.Action == "fail" || e.Action == "skip" {
			delete(said, id)
		}
	}
}
