package hub

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// lockFile locks a file until it is closed; the kernel releases the lock when the process ends.
func lockFile(path string) (io.Closer, error) {
	if path == "" {
		return io.NopCloser(nil), nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("hub lock: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errors.New("another hub runs its servers; end that one first")
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("hub lock %s: %w", path, err)
	}
	return f, nil
}
