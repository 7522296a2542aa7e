//go:build !linux

package main

import (
	"context"
	"errors"
)

func (plan) prepare(string) error { return errors.New("the image starts on Linux only") }

func doAs(_, _ account, do func() error) error { return do() }

func (plan) dropProfileLocks(string) error { return nil }

func (plan) superviseTethered(context.Context) error {
	return errors.New("the image starts on Linux only")
}

func keepOutput() error { return nil }

func becomeProgram([]string, []string) error { return errors.New("the image starts on Linux only") }
