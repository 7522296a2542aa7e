package audit

import (
	"fmt"
	"strings"
	"time"
)

const (
	// repeatTime is the interval between two lines that count similar refusals.
	repeatTime = time.Minute
	// maxKinds is the number of kinds that are counted separately in that time. Beyond it only the rule distinguishes
	// refusals.
	maxKinds = 32
)

// repeats prevents a client from filling the log with refusals. The first refusal of a kind is written immediately;
// later ones are counted, and a line has their number and time.
type repeats struct {
	every time.Duration
	kinds map[string]*repeat
	timer *time.Timer // runs while there are kinds
}

// repeat counts the refusals that are not in the log yet.
type repeat struct {
	like        Record
	count       int
	first, last time.Time
}

// kindOf returns the common part of similar refusals.
func kindOf(r Record) string {
	return strings.Join(append([]string{r.Event, r.Subject, r.Tool, r.Subcommand, r.Host, fmt.Sprint(r.Port), r.Decision, r.Rule, r.ErrorName}, r.Argv...), "\x00")
}

// countRefusal writes or counts a refusal; the log is locked.
func (l *Log) countRefusal(rec Record) error {
	rec = rec.cutTexts(maxText)
	kind := kindOf(rec)
	known := l.repeats.kinds[kind]
	if known == nil && len(l.repeats.kinds) >= maxKinds {
		rec = Record{Event: rec.Event, Decision: rec.Decision, Rule: rec.Rule, ErrorName: rec.ErrorName, PolicySHA256: rec.PolicySHA256, RunID: rec.RunID}
		kind = kindOf(rec)
		known = l.repeats.kinds[kind]
	}
	if known != nil {
		now := l.now()
		if known.count++; known.count == 1 {
			known.first = now
		}
		known.last = now
		return nil
	}
	if err := l.append(rec); err != nil {
		return err
	}
	rec.RequestID, rec.Requests, rec.TraceID, rec.Session = "", nil, "", "" // they belong to the first refusal alone
	l.repeats.kinds[kind] = &repeat{like: rec}
	if l.repeats.timer == nil {
		l.repeats.timer = time.AfterFunc(l.repeats.every, l.flushRepeats)
	}
	return nil
}

func (l *Log) flushRepeats() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	_ = l.withLock(l.writeCounts) // retried after an error
	l.repeats.timer = nil
	if len(l.repeats.kinds) > 0 {
		l.repeats.timer = time.AfterFunc(l.repeats.every, l.flushRepeats)
	}
}

// writeCounts writes the counts. It forgets a kind without refusals since the last time.
func (l *Log) writeCounts() error {
	for kind, r := range l.repeats.kinds {
		if r.count == 0 {
			delete(l.repeats.kinds, kind)
			continue
		}
		rec := r.like
		rec.Note = fmt.Sprintf("and %d more", r.count)
		rec.Data = map[string]any{"count": r.count, "first": r.first.UTC().Format(timeFormat), "last": r.last.UTC().Format(timeFormat)}
		if err := l.append(rec); err != nil {
			return err
		}
		r.count = 0
	}
	return nil
}
