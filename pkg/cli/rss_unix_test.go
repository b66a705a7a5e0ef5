//go:build unix

package cli_test

import (
	"os"
	"runtime"
	"syscall"
)

// maxRSS is the largest resident size of a process that ended, in bytes.
func maxRSS(p *os.ProcessState) int64 {
	u, ok := p.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return u.Maxrss
	}
	return u.Maxrss << 10
}
