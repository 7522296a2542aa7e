package sandbox

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// drainTime is how long what a program left behind may go on holding its output open.
const drainTime = 500 * time.Millisecond

// streams are the standard streams of a program that runc starts. They implement runc.IO. Pipes of our own, for a daemon that
// keeps one open must not keep us waiting.
type streams struct {
	stdin          *os.File // empty, unless tethered
	stdinW         *os.File // of a tethered container
	outR, outW     *os.File
	errR, errW     *os.File
	stdout, stderr io.Writer
	wg             sync.WaitGroup
}

// newStreams opens them; of a tethered container standard input and output are one connection.
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

// started lets what is printed through. Before the program itself runs, it is runc that prints.
func (s *streams) started() {
	s.outW.Close()
	s.errW.Close()
	if s.stdinW != nil {
		s.stdin.Close()
	} else {
		s.wg.Go(func() { _, _ = io.Copy(s.stdout, s.outR) })
	}
	s.wg.Go(func() { _, _ = io.Copy(s.stderr, s.errR) })
}

// conn gives the standard input and output of a tethered container.
func (s *streams) conn() io.ReadWriteCloser { return &files{s.outR, s.stdinW} }

// files is a connection over two files.
type files struct{ in, out *os.File }

func (f *files) Read(b []byte) (int, error)  { return f.in.Read(b) }
func (f *files) Write(b []byte) (int, error) { return f.out.Write(b) }
func (f *files) Close() error                { return errors.Join(f.in.Close(), f.out.Close()) }

// finish is called when the program has ended: it waits for the rest of what it printed.
func (s *streams) finish() {
	deadline := time.Now().Add(drainTime)
	_ = s.outR.SetReadDeadline(deadline)
	_ = s.errR.SetReadDeadline(deadline)
	s.wg.Wait()
	s.Close()
}

// Set gives the program its streams.
func (s *streams) Set(cmd *exec.Cmd) { cmd.Stdin, cmd.Stdout, cmd.Stderr = s.stdin, s.outW, s.errW }

// Close closes all ends that are ours.
func (s *streams) Close() error {
	for _, f := range []*os.File{s.stdin, s.stdinW, s.outR, s.outW, s.errR, s.errW} {
		f.Close() // a second time is no harm
	}
	return nil
}

// Stdin, Stdout and Stderr are of runc.IO, for who reads by itself.
func (s *streams) Stdin() io.WriteCloser { return nil }

// Stdout see Stdin.
func (s *streams) Stdout() io.ReadCloser { return nil }

// Stderr see Stdin.
func (s *streams) Stderr() io.ReadCloser { return nil }
