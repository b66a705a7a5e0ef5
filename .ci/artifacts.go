// Command artifacts checks that what `sam build` made can run: each function of template.yaml has its executable for the
// template's processor under .aws-sam/build. A deploy would go well without, and every invocation fail.
package main

import (
	"fmt"
	"os"

	"github.com/onceload/onceload/pkg/template"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	data, err := os.ReadFile("template.yaml")
	if err != nil {
		return err
	}
	t, err := template.Parse(data, nil)
	if err != nil {
		return err
	}
	return t.CheckArtifacts(".aws-sam/build")
}
