//go:build !linux

package main

import "errors"

func startCaged(string, []string, bool, stdio) error {
	return errors.New("the image starts on Linux only")
}
