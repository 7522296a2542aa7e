//go:build !linux

package main

import (
	"context"
	"errors"
)

func startCaged(string, []string, bool, stdio) error {
	return errors.New("the image starts on Linux only")
}

func probeCages(context.Context) ([]string, error) {
	return nil, errors.New("the image starts on Linux only")
}
