package sandbox

import "io"

// maxLogs limits the kept output of a container, in bytes: its end.
const maxLogs = 4 << 20

// tee returns a writer to the logs and to w. If w fails, for instance because its reader left, only the logs continue.
func (s *Sandbox) tee(w io.Writer) io.Writer {
	if w == nil {
		return &s.logs
	}
	return &tee{&s.logs, w}
}

type tee struct {
	logs io.Writer
	w    io.Writer
}

func (t *tee) Write(p []byte) (int, error) {
	if t.w != nil {
		if _, err := t.w.Write(p); err != nil {
			t.w = nil
		}
	}
	return t.logs.Write(p)
}
