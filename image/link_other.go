//go:build !linux

package image

import (
	"errors"
	"io/fs"
	"os"
)

func identify(fs.FileInfo) (fileID, bool) { return fileID{}, false }

func reflink(_, _ *os.File) error { return errors.ErrUnsupported }
