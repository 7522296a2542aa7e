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

// WriteBytes gives file the content data as WriteFile does.
func WriteBytes(file string, mode fs.FileMode, data []byte) error {
	return WriteFile(file, mode, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// WriteDir makes the directory dir with the content that write gives it, whole or not at all: it is made under a
// temporary name beside dir and renamed at the end. A dir that exists and isn't empty is an error.
func WriteDir(dir string, write func(tmp string) error) (err error) {
	tmp, err := TempBeside(dir)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(tmp)
		}
	}()
	if err := write(tmp); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(tmp, dir)
}

// vacant tells whether something can be written to dir.
func vacant(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(entries) > 0:
		return fmt.Errorf("%s exists and isn't empty; remove it or choose another destination", dir)
	}
	return nil
}

// TempBeside makes an empty directory beside dir for what is to become dir by a rename. A dir that exists and isn't
// empty is an error.
func TempBeside(dir string) (string, error) {
	dir = filepath.Clean(dir)
	if err := vacant(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+".*")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", errors.Join(err, os.RemoveAll(tmp))
	}
	return tmp, nil
}
