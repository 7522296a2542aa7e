package protocol

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
)

// line is a line that isn't blank, or the reason why there is none.
type line struct {
	text []byte
	err  error // errTooLong: the next line may be valid; any other is final
}

var errTooLong = errors.New("line too long")

// blanks around a frame have no meaning.
const blanks = " \t\r\n"

// readLines reads ahead by one line until the first error. Its goroutine stays in in.Read when ctx ends: not every
// reader can be interrupted.
func readLines(ctx context.Context, in io.Reader) <-chan line {
	lines := make(chan line)
	go func() {
		r := bufio.NewReaderSize(in, 64<<10)
		for {
			text, err := readLine(r)
			if err == nil && len(bytes.Trim(text, blanks)) == 0 {
				continue
			}
			select {
			case lines <- line{text, err}:
			case <-ctx.Done():
				return
			}
			if err != nil && !errors.Is(err, errTooLong) {
				return
			}
		}
	}()
	return lines
}

// readLine reads to the next newline. It keeps at most MaxFrame and one buffer in memory. The last line needs no
// newline.
func readLine(r *bufio.Reader) ([]byte, error) {
	var text []byte
	long := false
	for {
		part, err := r.ReadSlice('\n')
		body := bytes.TrimSuffix(part, []byte("\n"))
		if long = long || len(text)+len(body) > MaxFrame; long {
			text = nil
		} else {
			text = append(text, body...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil && len(text) == 0 && !long:
			return nil, err
		case long:
			return nil, errTooLong
		default:
			return text, nil
		}
	}
}
