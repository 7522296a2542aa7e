// Package audit writes and verifies the audit log: JSON lines of which each
// names the one before it by hash.
//
// # The chain
//
// A line is a JSON object that begins with "ts" (RFC 3339, UTC, milliseconds)
// and "seq" (1, 2, 3 …) and ends with "prev" and "hash", both 64 lower-case
// hexadecimal digits. To check one without this program:
//
//  1. remove the newline and the last field, `,"hash":"…"`, and keep the brace;
//  2. the SHA-256 of what is left must be the hash that was removed
//     (prev is part of it);
//  3. prev must be the hash of the line before, and seq that line's plus one;
//  4. the first line of a file names the last one of the next older file
//     (FILE.1 is older than FILE, FILE.2 than FILE.1); the very first line has
//     seq 1 and 64 zeros.
//
// The chain has no key. It shows what changed, was removed, put in, moved or
// torn; but who may write the file can compute a new chain, or cut its end. So
// keep the head (the last hash) elsewhere from time to time: Verify with that
// head finds both.
package audit

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Log is an open audit log. Several goroutines may use it, and several
// processes may write one file.
type Log struct {
	path     string
	maxBytes int64
	keep     int
	now      func() time.Time

	mu     sync.Mutex
	file   *os.File // nil: not open now
	size   int64    // of the lines in file that are known to be whole
	head   head
	bad    error  // for good: someone else changed the file
	owed   string // the note of a Repaired line that must come first
	missed int    // records that could not be written
	closed bool
}

// tamperError is for a file that someone else changed: only a new Open goes on.
type tamperError struct{ text string }

func (e *tamperError) Error() string { return e.text }

func tampered(format string, args ...any) error {
	return &tamperError{fmt.Sprintf(format, args...) + "; keep the files, run `browser-shell audit verify`, and start again"}
}

// Open makes a log or goes on with one. A file that would become larger than
// maxBytes is rotated to path.1, and keep rotated files stay (at least 1).
//
// It refuses a symbolic link, a file that is not regular, has another owner,
// other names or a mode wider than 0600, a directory where others may rename
// files, and a file whose last line is not a line of such a log. A last line
// without an end (a crash, a full disk) is moved to path.torn-TIME, and a line
// with event Repaired says so.
func Open(path string, maxBytes int64, keep int) (*Log, error) {
	if keep < 1 || maxBytes < 1 {
		return nil, errors.New("audit log: it needs a size and at least one rotated file")
	}
	if err := checkDir(path); err != nil {
		return nil, err
	}
	l := &Log{path: path, maxBytes: maxBytes, keep: keep, now: time.Now, head: genesis}
	if err := l.Ready(); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Write adds a line and returns when write(2) has taken it whole. (It does not
// wait for the disk.) After an error the record is not in the log, and the
// first line that can be written again says how many are missing.
func (l *Log) Write(rec Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.locked(func() error { return l.append(rec) })
	if err != nil {
		l.missed++
	}
	return err
}

// Ready says whether a line can be written now: the file is still there, the
// same and not shorter, what other processes added follows in the chain, and
// the last write did not fail (or else a line about that could be written).
// When the file was removed, replaced, shortened or changed by someone else it
// stays broken until the next Open.
func (l *Log) Ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.locked(func() error { return nil })
}

// Head gives the number and the hash of the last line that this process knows
// of: the anchor for Verify. Before the first line they are 0 and zeros.
func (l *Log) Head() (seq int64, hash string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head.seq, l.head.hash
}

// Close flushes the file to the disk. A closed log takes no more lines.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.file == nil {
		return nil
	}
	err := errors.Join(l.file.Sync(), l.file.Close())
	l.file = nil
	return err
}

// locked runs do while no other process writes, with head and size up to date.
func (l *Log) locked(do func() error) error {
	switch {
	case l.closed:
		return fmt.Errorf("audit log %s is closed", l.path)
	case l.bad != nil:
		return l.bad
	}
	err := l.acquire()
	if err == nil {
		err = l.settle()
	}
	if err == nil {
		err = do()
	}
	var t *tamperError
	if errors.As(err, &t) {
		l.bad = err
	}
	if l.file != nil {
		unlock(l.file)
	}
	return err
}

// acquire locks the file that path names and reads what others added to it.
func (l *Log) acquire() error {
	if l.file != nil {
		if err := lock(l.file); err != nil {
			return err
		}
		same, err := isAt(l.file, l.path)
		if err != nil {
			return err
		}
		if same {
			return l.catchUp()
		}
	}
	return l.attach()
}

func (l *Log) catchUp() error {
	total, err := size(l.file)
	switch {
	case err != nil:
		return err
	case total < l.size:
		return tampered("audit log %s was shortened from %d to %d bytes", l.path, l.size, total)
	case total == l.size:
		return nil
	}
	l.head, l.size, err = follow(l.file, l.size, l.head)
	if err != nil {
		return err
	}
	return l.mend(total)
}

// mend puts a torn last line aside.
func (l *Log) mend(total int64) error {
	if total == l.size {
		return nil
	}
	note, err := setAside(l.file, l.size, l.now())
	if err == nil {
		l.owed = note
	}
	return err
}

// attach opens the file that path names now, which may be a new one.
func (l *Log) attach() error {
	if l.file != nil {
		l.file.Close() // and its lock is gone
		l.file = nil
	}
	for range 100 {
		replaced, err := l.tryAttach()
		if !replaced {
			return err
		}
	}
	return fmt.Errorf("audit log %s is replaced all the time", l.path)
}

// tryAttach tells whether another process rotated the file before it was locked.
func (l *Log) tryAttach() (replaced bool, err error) {
	f, err := openPrivate(l.path, os.O_CREATE)
	if err != nil {
		return false, err
	}
	defer func() {
		if l.file != f {
			f.Close()
		}
	}()
	if err := lock(f); err != nil {
		return false, err
	}
	same, err := isAt(f, l.path)
	if err != nil || !same {
		return err == nil, err
	}
	return false, l.adopt(f)
}

// adopt goes on with f, if its chain has not gone back behind what is known.
func (l *Log) adopt(f *os.File) error {
	total, err := size(f)
	if err != nil {
		return err
	}
	e, whole, err := last(f)
	if err != nil {
		return err
	}
	h := e.head
	if whole == 0 {
		if h, err = l.rotatedHead(); err != nil {
			return err
		}
	}
	if h.seq < l.head.seq || h.seq == l.head.seq && h.hash != l.head.hash {
		return tampered("audit log %s was removed or replaced: it has lost lines up to seq %d", l.path, l.head.seq)
	}
	l.file, l.size, l.head = f, whole, h
	return l.mend(total)
}

// rotatedHead is the last line of the newest rotated file.
func (l *Log) rotatedHead() (head, error) {
	f, err := openPrivate(numbered(l.path, 1), 0)
	if errors.Is(err, os.ErrNotExist) {
		return genesis, nil
	}
	if err != nil {
		return head{}, err
	}
	defer f.Close()
	e, whole, err := last(f)
	if err == nil && whole == 0 {
		err = errNotOurs(f.Name())
	}
	return e.head, err
}

// settle writes the line that is owed: it also proves that lines can be
// written again.
func (l *Log) settle() error {
	note := l.owed
	if l.missed > 0 {
		if note != "" {
			note += "; "
		}
		note += fmt.Sprintf("%d records could not be written", l.missed)
	}
	if note == "" {
		return nil
	}
	if err := l.append(Record{Event: Repaired, Note: note}); err != nil {
		return err
	}
	l.owed, l.missed = "", 0
	return nil
}

// append writes one line; the file is locked and head is up to date.
func (l *Log) append(rec Record) error {
	b, next, err := rec.encode(l.now(), l.head)
	if err != nil {
		return err
	}
	if l.size > 0 && l.size+int64(len(b)) > l.maxBytes {
		if err := l.rotate(); err != nil {
			return err
		}
		if b, next, err = rec.encode(l.now(), l.head); err != nil {
			return err
		}
	}
	if _, err := l.file.Write(b); err != nil {
		// What was written of it is ours and no line: take it back. If that
		// fails too, the next one who locks the file puts it aside.
		_ = l.file.Truncate(l.size)
		return fmt.Errorf("audit log %s: %w", l.path, err)
	}
	l.size, l.head = l.size+int64(len(b)), next
	return nil
}

func (l *Log) rotate() error {
	if err := l.file.Sync(); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	if err := rotate(l.path, l.keep); err != nil {
		return err
	}
	return l.attach()
}
