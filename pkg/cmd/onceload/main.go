// Command onceload runs retry-safe ETL pipelines: see onceload help.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/onceload/onceload/pkg/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := cli.Run(ctx, cli.Env{Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr})
	stop()
	os.Exit(code)
}
