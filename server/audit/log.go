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
//     (FILE.N ends with seq N); the very first line has seq 1 and 64 zeros.
//
// The chain has no key. It shows what changed, was removed, put in, moved or
// torn; but who may write the file can compute a new chain, or cut its end. So
// keep an anchor (the number and the hash of a line) elsewhere from time to
// time: Verify with that anchor finds both.
//
// # What a client can do to it
//
// A client writes lines, so it must not be able to empty the log by that. What
// it says of itself has at most 128 bytes, and a refused call a few hundred,
// as they are written. Refusals that are alike are counted (repeat.go). A full log
// takes no more calls (ErrFull), unless its Limits choose to lose old lines.
package audit

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// Log is an open audit log. Several goroutines may use it, and several
// processes may write one file.
type Log struct {
	path   string
	limits Limits
	now    func() time.Time

	mu     sync.Mutex
	file   *os.File // nil: not open now
	size   int64    // of the lines in file that are known to be whole
	head   head
	bad    error  // for good: someone else changed the file
	owed   string // the note of a Repaired line that must come first
	missed int    // records that could not be written
	turned bool   // this process has just rotated the file
	closed bool
	repeats
}

// Limits bound a log.
type Limits struct {
	MaxBytes int64 // of a file; one that would become larger gets a number
	Keep     int   // files with a number, at least 1

	// Rotate removes the oldest file when there are too many. Without it the log is full then, until somebody takes files
	// with a number away. The newest of them may be taken when it is a minute old.
	Rotate bool
}

// ErrFull is for a log that takes no more calls.
var ErrFull = errors.New("the audit log is full")

// tamperError is for a file that someone else changed: only a new Open goes on.
type tamperError struct{ text string }

func (e *tamperError) Error() string { return e.text }

func tampered(format string, args ...any) error {
	return &tamperError{fmt.Sprintf(format, args...) + "; keep the files, run `browser-shell audit verify`, and start again"}
}

// Open makes a log or goes on with one, also with a full one. A file that would
// become larger than its limit is renamed to path.N, where N is the number of
// its last line.
//
// It refuses a symbolic link, a file that is not regular, has another owner,
// other names or a mode wider than 0600, a directory where others may rename
// files, and a file whose last line is not a line of such a log. A last line
// without an end (a crash, a full disk) is moved to path.torn-TIME, and a line
// with event Repaired says so.
func Open(path string, limits Limits) (*Log, error) {
	if limits.Keep < 1 || limits.MaxBytes < 1 {
		return nil, errors.New("audit log: it needs a size and at least one rotated file")
	}
	if err := checkDir(path); err != nil {
		return nil, err
	}
	l := &Log{path: path, limits: limits, now: time.Now, head: genesis, repeats: repeats{every: repeatTime, kinds: map[string]*repeat{}}}
	if err := l.Ready(); err != nil && !errors.Is(err, ErrFull) {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Write adds a line about something that begins or was refused, and returns
// when write(2) has taken it whole. (It does not wait for the disk.) A refusal
// like an earlier one may be counted instead. After an error, which is ErrFull
// for a full log, the record is not in the log, and the first line that can be
// written again says how many are missing.
func (l *Log) Write(rec Record) error {
	return l.write(func() error {
		switch err := l.room(); {
		case err != nil:
			return err
		case rec.Refused:
			return l.refuse(rec)
		}
		return l.append(rec)
	})
}

// Finish adds a line about something that Write or Ready let begin, or about
// the log's writer itself. A full log takes it too.
func (l *Log) Finish(rec Record) error { return l.write(func() error { return l.append(rec) }) }

func (l *Log) write(do func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.locked(do)
	if err != nil {
		l.missed++
	}
	return err
}

// Ready says whether a line can be written now: the file is still there, the
// same and not shorter, what other processes added follows in the chain, there
// is room, and the last write did not fail (or else a line about that could be
// written). When the file was removed, replaced, shortened or changed by
// someone else it stays broken until the next Open.
func (l *Log) Ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.locked(l.room)
}

// room returns ErrFull if the log takes no more calls.
func (l *Log) room() error {
	if l.limits.Rotate || l.size < l.limits.MaxBytes {
		return nil
	}
	old, err := numbered(l.path)
	if err == nil && len(old) >= l.limits.Keep {
		err = fmt.Errorf("%w: %s and %d older files; move the older ones away, or set audit.when_full", ErrFull, l.path, len(old))
	}
	return err
}

// Name is the path of the file that is written.
func (l *Log) Name() string { return l.path }

// Head gives the number and the hash of the last line that this process knows
// of: the anchor for Verify. Before the first line they are 0 and zeros.
func (l *Log) Head() (seq int64, hash string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head.seq, l.head.hash
}

// Close writes what is counted and flushes the file to the disk. A closed log
// takes no more lines.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.repeats.timer != nil {
		l.repeats.timer.Stop()
	}
	var err error
	if !l.closed && len(l.repeats.kinds) > 0 {
		err = l.locked(l.flush)
	}
	l.closed = true
	if l.file == nil {
		return err
	}
	err = errors.Join(err, l.file.Sync(), l.file.Close())
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
		if l.turned && h.seq < l.head.seq { // the file is gone already that it got its number just now
			h = l.head
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
	old, err := numbered(l.path)
	if err != nil || len(old) == 0 {
		return genesis, err
	}
	f, err := openPrivate(old[len(old)-1], 0)
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
	if l.missed > 0 && l.room() == nil {
		if note != "" {
			note += "; "
		}
		note += fmt.Sprintf("%d records could not be written", l.missed)
	}
	if note == "" {
		return nil
	}
	missed := l.missed
	if l.room() != nil {
		missed = 0 // they are told when there is room
	}
	if err := l.append(Record{Event: Repaired, Note: note}); err != nil {
		return err
	}
	l.owed, l.missed = "", l.missed-missed
	return nil
}

// append writes one line; the file is locked and head is up to date.
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
		// What was written of it is ours and no line: take it back. If that
		// fails too, the next one who locks the file puts it aside.
		_ = l.file.Truncate(l.size)
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			err = fmt.Errorf("%w: %w", ErrFull, err)
		}
		return fmt.Errorf("audit log %s: %w", l.path, err)
	}
	l.size, l.head = l.size+int64(len(b)), next
	return nil
}

// rotate begins a new file, if there may be one more. In a log that keeps all
// lines what begins when there is room may end beyond it.
func (l *Log) rotate() (bool, error) {
	old, err := numbered(l.path)
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
	l.turned = true
	defer func() { l.turned = false }()
	return true, l.attach()
}
