package image

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteFile gives file the content that write makes, whole or not at all: it goes to a temporary name beside it and
// is renamed at the end. Missing directories are made.
func WriteFile(file string, mode fs.FileMode, write func(io.Writer) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	w := bufio.NewWriterSize(f, 256<<10)
	if err := write(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// WriteBytes writes data to file as WriteFile does.
func WriteBytes(file string, mode fs.FileMode, data []byte) error {
	return WriteFile(file, mode, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// WriteDir makes the directory dir with the content that write gives it, whole or not at all: it is made under a
// temporary name beside dir and renamed at the end. A dir that is there is an error that wraps fs.ErrExist, unless it is an empty
// directory.
func WriteDir(dir string, write func(tmp string) error) (err error) {
	dir = filepath.Clean(dir)
	if err := checkVacant(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(tmp)
		}
	}()
	if err := errors.Join(os.Chmod(tmp, 0o755), write(tmp)); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) { // somebody else has filled it meanwhile
		return err
	}
	return os.Rename(tmp, dir)
}

// checkVacant returns an error unless dir is missing or an empty directory. A link to one is refused: it would be lost.
func checkVacant(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s: %w and isn't a directory; choose another destination", dir, fs.ErrExist)
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s: %w and isn't empty; remove it or choose another destination", dir, fs.ErrExist)
	}
	return err
}
