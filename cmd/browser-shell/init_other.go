//go:build !linux

package main

import "errors"

func (plan) prepare(string) error { return errors.New("the image starts on Linux only") }

func as(_, _ account, do func() error) error { return do() }

func replace([]string, []string) error { return errors.New("the image starts on Linux only") }
