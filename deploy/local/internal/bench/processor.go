package bench

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of times in /proc: USER_HZ, which is 100 on every architecture that Go runs on.
const tick = 10 * time.Millisecond

// processorTime is the time that a process has spent on processors so far, in user and in system mode. It works on Linux.
func processorTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("processor time of process %d: it is gone, or this is not Linux: %w", pid, err)
	}
	if err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return parseStat(string(stat))
}

// parseStat reads utime and stime, fields 14 and 15 as proc(5) counts. The second field, the name in parentheses, may hold
// anything, so the count begins behind it.
func parseStat(stat string) (time.Duration, error) {
	_, rest, found := strings.Cut(stat[max(strings.LastIndexByte(stat, ')'), 0):], " ")
	fields := strings.Fields(rest)
	if !found || len(fields) < 13 {
		return 0, fmt.Errorf("processor time: unreadable: %q", stat)
	}
	var total time.Duration
	for _, field := range fields[11:13] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("processor time: %w", err)
		}
		total += time.Duration(ticks) * tick
	}
	return total, nil
}
