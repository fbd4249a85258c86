package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// memory is a process's resident memory, in MiB.
type memory struct{ now, peak float64 }

// residentMemory reads what the kernel counts. It works on Linux.
func residentMemory(pid int) (memory, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	return parseMemory(string(status))
}

// parseMemory finds VmRSS and VmHWM, which proc(5) gives in kB of 1024 bytes.
func parseMemory(status string) (memory, error) {
	var m memory
	found := 0
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		var field *float64
		switch name {
		case "VmRSS":
			field = &m.now
		case "VmHWM":
			field = &m.peak
		default:
			continue
		}
		number, unit, _ := strings.Cut(strings.TrimSpace(value), " ")
		kilobytes, err := strconv.ParseInt(number, 10, 64)
		if err != nil || unit != "kB" {
			return memory{}, fmt.Errorf("memory: unreadable: %q", line)
		}
		*field = rounded(float64(kilobytes)/1024, 1)
		found++
	}
	if found != 2 {
		return memory{}, fmt.Errorf("memory: VmRSS or VmHWM is missing")
	}
	return m, nil
}
