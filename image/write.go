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

// WriteFile writes file atomically: write fills a temporary file beside it, which is renamed at the end. Missing
// directories are created.
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

// WriteBytes writes data to file like WriteFile.
func WriteBytes(file string, mode fs.FileMode, data []byte) error {
	return WriteFile(file, mode, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// WriteDir makes the directory dir atomically: write fills a temporary directory beside it, which is renamed at the
// end. If dir exists and isn't an empty directory, the error wraps fs.ErrExist.
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
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) { // another process has filled it
		return err
	}
	return os.Rename(tmp, dir)
}

// checkVacant returns an error unless dir is missing or an empty directory. It refuses a symlink, which renaming would
// replace.
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
