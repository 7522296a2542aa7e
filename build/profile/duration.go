package profile

import (
	"fmt"
	"strconv"
	"time"
)

// Duration is a Go duration in YAML: "10s".
type Duration time.Duration

// MarshalText gives the duration as Go writes it: "1m30s".
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads a Go duration.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// MarshalText gives the mode in octal with a leading zero: "0644".
func (m Mode) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "0%03o", int64(m)), nil }

// UnmarshalText reads an octal number.
func (m *Mode) UnmarshalText(text []byte) error {
	v, err := strconv.ParseInt(string(text), 8, 64)
	*m = Mode(v)
	return err
}
