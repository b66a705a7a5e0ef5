//go:build unix

package cli_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// watchPeak watches the largest resident size of a process until the returned function is called, once the process has
// ended; that one returns it in bytes. Linux is asked while the process runs: what it says of a process that has ended
// also counts what its parent held when it began.
func watchPeak(pid int) func(*os.ProcessState) int64 {
	if runtime.GOOS != "linux" {
		return maxRSS
	}
	ended, peak := make(chan struct{}), make(chan int64)
	go func() {
		var most int64
		for {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, rest, found := strings.Cut(string(status), "VmHWM:")
			var kib int64
			if err == nil && found {
				if _, err := fmt.Sscan(rest, &kib); err == nil {
					most = max(most, kib<<10)
				}
			}
			select {
			case <-ended:
				peak <- most
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return func(*os.ProcessState) int64 {
		close(ended)
		return <-peak
	}
}

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
