//go:build !unix

package cli_test

import "os"

func maxRSS(*os.ProcessState) int64 { return 0 }
