// Command conformance runs the conformance suite of the stores, TestConformance of the packages in its arguments, and
// prints what each backend makes of each check. It fails if a check fails, or if a backend was not there.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(packages []string) error {
	cmd := exec.Command("go", append([]string{"test", "-json", "-count=1", "-run", "^TestConformance$"}, packages...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	results, whole, err := read(out)
	if err != nil {
		return err
	}
	passed := cmd.Wait() == nil && whole
	for _, of := range slices.Sorted(maps.Keys(results)) {
		passed = show(of, results[of]) && passed
	}
	if !passed || len(results) != 2 {
		return errors.New("the stores do not all conform")
	}
	return nil
}

// read collects the results of tests called TestConformance/<interface>[/<server>]/<check>, by interface, check and
// backend, and shows what failed and what a server lacks. Whole is false if a test was skipped: a server was not there.
func read(out io.Reader) (results map[string]map[string]map[string]string, whole bool, err error) {
	results, whole = map[string]map[string]map[string]string{}, true
	said := map[string]string{}
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return results, whole, nil
		}
		if err != nil {
			return nil, false, err
		}
		var e struct{ Action, Package, Test, Output string }
		if json.Unmarshal(line, &e) != nil {
			fmt.Printf("%s", line)
			continue
		}
		id := e.Package + " " + e.Test
		said[id] += e.Output
		if _, reason, ok := strings.Cut(e.Output, ".go:"); ok && strings.Contains(reason, " is not run on this server: ") {
			fmt.Printf("%s: %s", path.Base(e.Test), reason[strings.Index(reason, " ")+1:])
		}
		switch e.Action {
		case "build-output":
			fmt.Print(e.Output)
			continue
		case "fail", "skip":
			fmt.Print(said[id])
			whole = whole && (e.Action != "skip" || e.Test == "") // a package without tests is skipped too
		case "pass":
		default:
			continue
		}
		names := strings.Split(e.Test, "/")
		backend := path.Base(e.Package)
		if backend == "cloud" && len(names) > 3 {
			backend = names[2]
			names = slices.Delete(names, 2, 3)
		}
		if len(names) != 3 || backend == "cloud" {
			continue // a group of checks
		}
		of, check := names[1], names[2]
		if results[of] == nil {
			results[of] = map[string]map[string]string{}
		}
		if results[of][check] == nil {
			results[of][check] = map[string]string{}
		}
		results[of][check][backend] = e.Action
	}
}

// show prints one interface's table. A check that a stand-in server lacks was not run on it; on our own backends every
// check must have passed.
func show(of string, checks map[string]map[string]string) bool {
	seen := map[string]bool{}
	for _, by := range checks {
		for b := range by {
			seen[b] = true
		}
	}
	backends := slices.Sorted(maps.Keys(seen))
	fmt.Printf("\n%-28s", of)
	for _, b := range backends {
		fmt.Printf("%-16s", b)
	}
	fmt.Println()
	fine := true
	for _, check := range slices.Sorted(maps.Keys(checks)) {
		fmt.Printf("  %-26s", check)
		for _, b := range backends {
			result := checks[check][b]
			if result == "" {
				result = "not run"
			}
			fine = fine && (result == "pass" || result == "not run" && b != "mem" && b != "disk")
			fmt.Printf("%-16s", result)
		}
		fmt.Println()
	}
	return fine
}
