package capture

import (
	"strings"
	"testing"
)

func TestHeadTail(t *testing.T) {
	const most = 1000
	over := 0
	head, tail := &Head{Max: most, Over: func() { over++ }}, &Tail{Max: most}
	var all []byte
	for i := range 300 {
		p := []byte(strings.Repeat(string(rune('a'+i%26)), i%97))
		if i == 200 {
			p = []byte(strings.Repeat("long", most/3))
		}
		beyond := over
		for _, w := range []interface{ Write([]byte) (int, error) }{head, tail} {
			if n, err := w.Write(p); n != len(p) || err != nil {
				t.Fatal(n, err)
			}
		}
		all = append(all, p...)
		if want := all[:min(len(all), most)]; string(head.Bytes()) != string(want) {
			t.Fatalf("after %d bytes: not the first ones", len(all))
		}
		if truncated := len(all) > most; head.Truncated() != truncated || truncated && len(p) > 0 && over == beyond {
			t.Fatalf("after %d bytes: truncated is %t, over was called %d times", len(all), head.Truncated(), over)
		}
		if want := all[max(0, len(all)-most):]; string(tail.Bytes()) != string(want) {
			t.Fatalf("after %d bytes: not the last ones", len(all))
		}
	}
}
