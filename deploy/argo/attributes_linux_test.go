package argo

import "syscall"

// dieWithParent makes the kernel end the child when the thread that starts it ends, so also when a test's time-out ends this process.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
