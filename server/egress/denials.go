package egress

import (
	"fmt"
	"sync"
	"time"
)

const (
	denialTime = time.Second // between two records of refusals that are alike
	maxDenials = 32          // kinds that are recorded apart in that time
)

// denial is what refusals that are alike have in common.
type denial struct {
	host string
	port int
	rule string
}

// denials keeps a page that asks for the same, or for ever other things that
// are refused from pushing all else out of the log. Nothing is left out: the
// first of a kind is recorded at once, the others are counted, and once a
// second a record tells how many. Beyond most kinds only the rule tells
// one from another.
type denials struct {
	record func(Decision) error
	every  time.Duration
	most   int

	mu     sync.Mutex
	counts map[denial]int // of refusals that are not recorded yet
	timer  *time.Timer    // while there are counts
	closed bool           // each is recorded at once
}

// add records or counts a refusal. An error says that it is not recorded.
func (d *denials) add(dec Decision) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return d.record(dec)
	}
	kind := denial{dec.Host, dec.Port, dec.Rule}
	_, known := d.counts[kind]
	if !known && len(d.counts) >= d.most {
		kind = denial{rule: dec.Rule}
		_, known = d.counts[kind]
	}
	if known {
		d.counts[kind]++
		return nil
	}
	if err := d.record(dec); err != nil {
		return err
	}
	d.counts[kind] = 0
	if d.timer == nil {
		d.timer = time.AfterFunc(d.every, d.tick)
	}
	return nil
}

func (d *denials) tick() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	_ = d.flush() // what is left is tried again
	d.timer = nil
	if len(d.counts) > 0 {
		d.timer = time.AfterFunc(d.every, d.tick)
	}
}

// flush records the counts. A kind of which nothing came is forgotten; one
// that cannot be recorded stays, and its count too.
func (d *denials) flush() error {
	for kind, n := range d.counts {
		if n == 0 {
			delete(d.counts, kind)
			continue
		}
		more := Decision{Time: time.Now(), Method: fmt.Sprintf("and %d more", n), Host: kind.host, Port: kind.port, Rule: kind.rule}
		if err := d.record(more); err != nil {
			return err
		}
		d.counts[kind] = 0
	}
	return nil
}

// close records what is left.
func (d *denials) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
	d.closed = true
	return d.flush()
}
