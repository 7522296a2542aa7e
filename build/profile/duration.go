package profile

import (
	"fmt"
	"strconv"
	"time"
)

// Duration is a Go duration in YAML: "10s".
type Duration time.Duration

// MarshalText returns the duration in Go's form: "1m30s".
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText parses a Go duration.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// MarshalText returns the mode in octal with a leading zero: "0644".
func (m Mode) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "0%03o", int64(m)), nil }

// UnmarshalText parses an octal number.
func (m *Mode) UnmarshalText(text []byte) error {
	v, err := strconv.ParseInt(string(text), 8, 64)
	*m = Mode(v)
	return err
}
