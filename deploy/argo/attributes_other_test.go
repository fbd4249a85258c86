//go:build !linux

package argo

import "syscall"

func dieWithParent() *syscall.SysProcAttr { return nil }
