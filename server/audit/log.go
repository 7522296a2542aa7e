// Package audit writes and verifies the audit log: JSON lines, each with the hash
// of the line before.
//
// # The chain
//
// A line is a JSON object that begins with "ts" (RFC 3339, UTC, milliseconds)
// and "seq" (1, 2, 3 …) and ends with "prev" and "hash", both 64 lower-case
// hexadecimal digits. To check one without this program:
//
//  1. remove the newline and the last field, `,"hash":"…"`, and keep the brace;
//  2. the SHA-256 of the rest must be the removed hash (prev is part of it);
//  3. prev must be the hash of the line before, and seq that line's plus one;
//  4. the first line of a file continues from the last one of the next older file
//     (FILE.N ends with seq N); the very first line has seq 1 and 64 zeros.
//
// The chain has no key. It reveals lines that were changed, removed, inserted, moved
// or torn. But whoever can write the file can compute a new chain, or cut its end. So
// keep an anchor (the number and the hash of a line) elsewhere from time to
// time: Verify with that anchor detects both.
//
// # Protection against clients
//
// A client causes lines, so it must not be able to push others out of the log. Its
// claims about itself are limited to 128 bytes of JSON, a refused call to a few
// hundred. Similar refusals of a session are counted (repeat.go). A full log accepts no more
// calls (ErrFull), unless its Limits rotate old lines out.
package audit

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Log is an open audit log, which this process alone writes. It is safe for concurrent use.
type Log struct {
	path   string
	limits Limits
	now    func() time.Time

	mu     sync.Mutex
	file   *os.File // nil: not open
	size   int64    // of the complete lines in file
	head   head
	bad    error  // permanent: someone else changed the file
	owed   string // note of a Repaired line to write first
	missed int    // records that could not be written
	closed bool
	repeats
}

// Limits limits the size of a log.
type Limits struct {
	MaxBytes int64 // of a file; a larger one is renamed with a number
	Keep     int   // number of renamed files, at least 1

	// Rotate removes the oldest file if there are too many. Without it the log is full then, until somebody removes
	// renamed files. The newest of them may be removed once it is a minute old.
	Rotate bool
}

// ErrFull reports a log that accepts no more calls.
var ErrFull = errors.New("the audit log is full")

// setTampered notes that someone else changed the file: only a new Open continues.
func (l *Log) setTampered(format string, args ...any) error {
	l.bad = fmt.Errorf(format+"; keep the files, run `browser-shell audit verify`, and start again", args...)
	return l.bad
}

// Open creates a log or continues one, also a full one. A file that would exceed its limit is renamed to path.N, where
// N is the number of its last line.
//
// It refuses a symbolic link, a file that is not regular, has another owner, other names or a mode wider than 0600, a
// directory where others can rename files, a file that another process writes, and a file whose last line is not a line
// of such a log. An incomplete last line (after a crash) is moved to path.torn-TIME, and a line with event Repaired
// records this.
func Open(path string, limits Limits) (*Log, error) {
	if limits.Keep < 1 || limits.MaxBytes < 1 {
		return nil, fmt.Errorf("audit log: a size of %d bytes and %d rotated files: want at least 1 of each", limits.MaxBytes, limits.Keep)
	}
	if err := checkDir(path); err != nil {
		return nil, err
	}
	l := &Log{path: path, limits: limits, now: time.Now, head: genesis, repeats: repeats{every: repeatTime}}
	if err := l.Ready(); err != nil && !errors.Is(err, ErrFull) {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Write appends a line about the start of something or a refusal, and returns when write(2) has accepted it. (It does
// not wait for the disk.) A refusal like an earlier one may be counted instead. After an error, such as ErrFull, the
// record is not in the log, and the next line that is written has the number of missing ones.
func (l *Log) Write(rec Record) error {
	return l.write(func() error {
		switch err := l.checkRoom(); {
		case err != nil:
			return err
		case rec.Refused:
			return l.countRefusal(rec)
		}
		return l.append(rec)
	})
}

// Finish appends a line about something that Write or Ready permitted, or about the log's writer itself, also to a full
// log.
func (l *Log) Finish(rec Record) error { return l.write(func() error { return l.append(rec) }) }

func (l *Log) write(do func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.withFile(do)
	if err != nil {
		l.missed++
	}
	return err
}

// Ready returns nil if a line can be written now. The file must be the same, as long as this process left it, and there
// must be room. After a failed write it first writes a line about that. If someone else removed, replaced or changed the
// file, it fails until the next Open.
func (l *Log) Ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.withFile(l.checkRoom)
}

// checkRoom returns ErrFull if the log accepts no more calls.
func (l *Log) checkRoom() error {
	if l.limits.Rotate || l.size < l.limits.MaxBytes {
		return nil
	}
	old, err := listNumbered(l.path)
	if err == nil && len(old) >= l.limits.Keep {
		err = fmt.Errorf("%w: %s and %d older files; move the older ones away, or set audit.when_full", ErrFull, l.path, len(old))
	}
	return err
}

// Name returns the path of the current file.
func (l *Log) Name() string { return l.path }

// Head returns the number and the hash of the last known line: the anchor for Verify. Before the first line they are 0
// and zeros.
func (l *Log) Head() (seq int64, hash string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head.seq, l.head.hash
}

// Close writes the counts and flushes the file to the disk. A closed log accepts no more lines.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.repeats.timer != nil {
		l.repeats.timer.Stop()
	}
	var err error
	if !l.closed && l.repeats.size > 0 {
		err = l.withFile(l.writeCounts)
	}
	l.closed = true
	if l.file == nil {
		return err
	}
	err = errors.Join(err, l.file.Sync(), l.file.Close())
	l.file = nil
	return err
}

// withFile runs do when the file is open and nobody else has touched it.
func (l *Log) withFile(do func() error) error {
	switch {
	case l.closed:
		return fmt.Errorf("audit log %s is closed", l.path)
	case l.bad != nil:
		return l.bad
	}
	err := l.checkFile()
	if err == nil {
		err = l.writeOwed()
	}
	if err == nil {
		err = do()
	}
	return err
}

// checkFile opens the file, or checks that the open one is as this process left it.
func (l *Log) checkFile() error {
	if l.file == nil {
		return l.openFile()
	}
	same, err := isAt(l.file, l.path)
	if err != nil {
		return err
	}
	if !same {
		return l.setTampered("audit log %s was removed or replaced: lines up to seq %d may be lost", l.path, l.head.seq)
	}
	total, err := fileSize(l.file)
	if err == nil && total != l.size {
		err = l.setTampered("audit log %s was changed from %d to %d bytes", l.path, l.size, total)
	}
	return err
}

// openFile opens and locks the file at path, or a new one. The first one that a process opens may have lines.
func (l *Log) openFile() error {
	f, err := openPrivate(l.path, os.O_CREATE)
	if err != nil {
		return err
	}
	defer func() {
		if l.file != f {
			f.Close()
		}
	}()
	if err := lockFile(f); err != nil {
		return err
	}
	e, whole, err := readLast(f)
	if err != nil {
		return err
	}
	h := e.head
	switch {
	case whole == 0 && l.head == genesis:
		if h, err = l.rotatedHead(); err != nil {
			return err
		}
	case whole == 0: // the next file
		h = l.head
	case l.head != genesis:
		return l.setTampered("audit log %s was replaced: lines up to seq %d are lost", l.path, l.head.seq)
	}
	total, err := fileSize(f)
	if err == nil && total != whole {
		l.owed, err = setAside(f, whole, l.now())
	}
	if err != nil {
		return err
	}
	l.file, l.size, l.head = f, whole, h
	return nil
}

// rotatedHead returns the last line of the newest renamed file.
func (l *Log) rotatedHead() (head, error) {
	old, err := listNumbered(l.path)
	if err != nil || len(old) == 0 {
		return genesis, err
	}
	f, err := openPrivate(old[len(old)-1], 0)
	if err != nil {
		return head{}, err
	}
	defer f.Close()
	e, whole, err := readLast(f)
	if err == nil && whole == 0 {
		err = errNotOurs(f.Name())
	}
	return e.head, err
}

// writeOwed writes the owed line, which also proves that the log is writable again. The number of missing records waits
// for room.
func (l *Log) writeOwed() error {
	note, missed := l.owed, 0
	if l.missed > 0 && l.checkRoom() == nil {
		missed = l.missed
		note = strings.TrimPrefix(fmt.Sprintf("%s; %d records could not be written", note, missed), "; ")
	}
	if note == "" {
		return nil
	}
	if err := l.append(Record{Event: Repaired, Note: note}); err != nil {
		return err
	}
	l.owed, l.missed = "", l.missed-missed
	return nil
}

// append writes one line.
func (l *Log) append(rec Record) error {
	b, next, err := rec.encode(l.now(), l.head)
	if err != nil {
		return err
	}
	if l.size > 0 && l.size+int64(len(b)) > l.limits.MaxBytes {
		turned, err := l.rotate()
		if err != nil {
			return err
		}
		if turned {
			if b, next, err = rec.encode(l.now(), l.head); err != nil {
				return err
			}
		}
	}
	if _, err := l.file.Write(b); err != nil {
		// Remove the part of the line that was written. If that fails, too, the next Open moves it aside.
		_ = l.file.Truncate(l.size)
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			err = fmt.Errorf("%w: %w", ErrFull, err)
		}
		return fmt.Errorf("audit log %s: %w", l.path, err)
	}
	l.size, l.head = l.size+int64(len(b)), next
	return nil
}

// rotate begins a new file, if there may be one more. In a log without Rotate, a line that Write permitted may exceed
// the last file's limit.
func (l *Log) rotate() (bool, error) {
	old, err := listNumbered(l.path)
	if err != nil {
		return false, err
	}
	if !l.limits.Rotate && len(old) >= l.limits.Keep {
		return false, nil
	}
	if err := l.file.Sync(); err != nil {
		return false, fmt.Errorf("audit log: %w", err)
	}
	if err := os.Rename(l.path, fmt.Sprintf("%s.%012d", l.path, l.head.seq)); err != nil {
		return false, fmt.Errorf("audit log: %w", err)
	}
	for n := len(old) + 1; n > l.limits.Keep; n-- {
		if err := os.Remove(old[0]); err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, fmt.Errorf("audit log: %w", err)
		}
		old = old[1:]
	}
	l.file.Close()
	l.file = nil
	return true, l.openFile()
}
