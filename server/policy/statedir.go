package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// OpenStateDir opens the directory that state_dir names; "" means browser-shell-UID in the temporary directory. It
// creates it with mode 0700, or checks that it is a real directory of this user without access for others: another user
// may have created it first.
func OpenStateDir(dir string) (string, error) {
	if dir == "" {
		dir = filepath.Join(os.TempDir(), fmt.Sprintf("browser-shell-%d", os.Getuid()))
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("state directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(st.Uid) != os.Getuid() || info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("state directory %s: must be a directory of user %d with mode 0700; remove it or set state_dir in the policy file", dir, os.Getuid())
	}
	return dir, nil
}
