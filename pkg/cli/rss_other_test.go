//go:build !unix

package cli_test

import "os"

func watchPeak(int) func(*os.ProcessState) int64 {
	return func(*os.ProcessState) int64 { return 0 }
}
