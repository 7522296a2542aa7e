//go:build !linux

package output

func exchange(a, b string) error { return swap(a, b) }
