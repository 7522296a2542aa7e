package need

import (
	"testing"
	"time"
)

// Patience is the longest wait for a condition. It is far longer than needed, because a machine that runs many tests at
// once may leave one without a processor for seconds.
const Patience = time.Minute

// Eventually waits until ok returns true, or ends the test with the text of state.
func Eventually(t testing.TB, ok func() bool, state func() string) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never so; at last: %s", state())
		}
	}
}

// Within repeats do until it returns at most limit. Other work on the machine makes single runs miss a short limit;
// slow code misses it each time.
func Within(t testing.TB, limit time.Duration, do func() time.Duration) {
	t.Helper()
	least := do()
	for deadline := time.Now().Add(Patience); least > limit && time.Now().Before(deadline); {
		least = min(least, do())
	}
	if least > limit {
		t.Errorf("it took at least %s, which is more than %s", least, limit)
	}
	t.Logf("it took %s", least)
}
