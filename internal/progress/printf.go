package progress

import (
	"encoding/json"
	"fmt"
)

// Printf writes a line above the bars.
func (b *bars) Printf(format string, args ...any) {
	fmt.Fprintln(b.p, clean(fmt.Sprintf(format, args...)))
}

// Printf writes a line, or an event "note".
func (r *eventual) Printf(format string, args ...any) {
	text := clean(fmt.Sprintf(format, args...))
	if !r.objects {
		r.line([]byte(text))
		return
	}
	if b, err := json.Marshal(map[string]string{"event": "note", "text": text}); err == nil {
		r.line(b)
	}
}

// Printf writes nothing.
func (quiet) Printf(string, ...any) {}
