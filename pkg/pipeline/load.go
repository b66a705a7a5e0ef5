package pipeline

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/onceload/onceload/pkg/etl"
)

//go:embed pipelines/*.yaml
var embedded embed.FS

// Names lists the embedded pipelines in the order of their names.
func Names() []string {
	files, err := fs.Glob(embedded, "pipelines/*.yaml")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(strings.TrimPrefix(f, "pipelines/"), ".yaml")
	}
	return files
}

// Find reads a pipeline by the name of an embedded file, or by path: whatever has a slash or ends in .yaml or .yml is a
// path. A name or path that leads nowhere is an error of kind Usage, a faulty file one of kind ContractInvalid that holds
// [Faults].
func Find(nameOrPath string) (*Pipeline, error) {
	if isPath(nameOrPath) {
		return readFile(nameOrPath)
	}
	file := "pipelines/" + nameOrPath + ".yaml"
	data, err := embedded.ReadFile(file)
	if err != nil {
		hint := "a path to a file needs a slash or the ending .yaml"
		if near := Nearest(nameOrPath, Names()); near != "" {
			hint = "did you mean " + near + "?"
		}
		return nil, etl.Errorf(etl.Usage, "no pipeline %q among %s: %s", nameOrPath, strings.Join(Names(), ", "), hint)
	}
	return Parse(file, data)
}

func isPath(s string) bool {
	return strings.ContainsAny(s, `/\`) || strings.HasSuffix(s, ".yaml") || strings.HasSuffix(s, ".yml")
}

// readFile reads one byte more than Parse accepts, so that a huge file is refused and never held.
func readFile(path string) (p *Pipeline, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, etl.Errorf(etl.Usage, "open pipeline file: %w", err)
	}
	defer func() {
		if cerr := f.Close(); cerr != nil {
			err = errors.Join(err, fmt.Errorf("close pipeline file %s: %w", path, cerr))
		}
	}()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return nil, etl.Errorf(etl.Usage, "read pipeline file: %w", err)
	}
	return Parse(path, data)
}
