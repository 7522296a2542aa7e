package sandbox

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// drainTime is the time for which a leftover process may keep the output open.
const drainTime = 500 * time.Millisecond

// streams holds the standard streams of a program that runc starts; it implements runc.IO. The pipes are our own, so
// that a daemon which keeps one open can't block us.
type streams struct {
	stdin          *os.File // empty, unless tethered
	stdinW         *os.File // of a tethered container
	outR, outW     *os.File
	errR, errW     *os.File
	stdout, stderr io.Writer
	wg             sync.WaitGroup
}

// newStreams opens the streams; for a tethered container standard input and output are one connection.
func newStreams(stdout, stderr io.Writer, tethered bool) (s *streams, err error) {
	s = &streams{stdout: stdout, stderr: stderr}
	if tethered {
		s.stdin, s.stdinW, err = os.Pipe()
	} else {
		s.stdin, err = os.Open(os.DevNull)
	}
	if err == nil {
		s.outR, s.outW, err = os.Pipe()
	}
	if err == nil {
		s.errR, s.errW, err = os.Pipe()
	}
	if err != nil {
		s.Close()
	}
	return s, err
}

// startCopying begins copying the output. Before the program itself runs, runc writes to it.
func (s *streams) startCopying() {
	s.outW.Close()
	s.errW.Close()
	if s.stdinW != nil {
		s.stdin.Close()
	} else {
		s.wg.Go(func() { _, _ = io.Copy(s.stdout, s.outR) })
	}
	s.wg.Go(func() { _, _ = io.Copy(s.stderr, s.errR) })
}

// conn returns the standard input and output of a tethered container.
func (s *streams) conn() io.ReadWriteCloser { return &files{s.outR, s.stdinW} }

// files is a connection over two files.
type files struct{ in, out *os.File }

func (f *files) Read(b []byte) (int, error)  { return f.in.Read(b) }
func (f *files) Write(b []byte) (int, error) { return f.out.Write(b) }
func (f *files) Close() error                { return errors.Join(f.in.Close(), f.out.Close()) }

// drainAndClose waits for the remaining output of a program that has ended.
func (s *streams) drainAndClose() {
	deadline := time.Now().Add(drainTime)
	_ = s.outR.SetReadDeadline(deadline)
	_ = s.errR.SetReadDeadline(deadline)
	s.wg.Wait()
	s.Close()
}

// Set sets the program's streams.
func (s *streams) Set(cmd *exec.Cmd) { cmd.Stdin, cmd.Stdout, cmd.Stderr = s.stdin, s.outW, s.errW }

// Close closes our ends.
func (s *streams) Close() error {
	for _, f := range []*os.File{s.stdin, s.stdinW, s.outR, s.outW, s.errR, s.errW} {
		f.Close() // closing twice is harmless
	}
	return nil
}

// Stdin, Stdout and Stderr complete runc.IO; nothing uses them.
func (s *streams) Stdin() io.WriteCloser { return nil }

// Stdout see Stdin.
func (s *streams) Stdout() io.ReadCloser { return nil }

// Stderr see Stdin.
func (s *streams) Stderr() io.ReadCloser { return nil }
