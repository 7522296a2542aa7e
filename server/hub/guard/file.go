package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/slimctl/slimctl/server/strictjson"
)

// Limits for a policy file.
const (
	maxFile  = 1 << 20 // bytes
	maxList  = 64      // values of one list
	maxNamed = 64      // servers
)

// Load reads a policy file. Only the default path may be missing, which means the built-in policy. Load also refuses a
// file that others can write, that is not regular or that is larger than 1 MiB.
func Load(path string) (*Policy, error) { return load(path, path == DefaultPath) }

func load(path string, optional bool) (*Policy, error) {
	if _, err := os.Lstat(path); optional && errors.Is(err, fs.ErrNotExist) {
		return Default(), nil
	}
	b, err := strictjson.Read(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("hub policy: %w", err)
	}
	p, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("hub policy %s:%w", path, err)
	}
	return p, nil
}
