package need

import (
	"testing"
	"time"
)

// Patience is how long a test waits for what has to happen. It is far longer than anything takes, since a machine that
// runs many tests at once may leave one of them without a processor for seconds.
const Patience = time.Minute

// Eventually waits until ok says so, and ends the test when it never does; state says what there is instead.
func Eventually(t testing.TB, ok func() bool, state func() string) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never so; at last: %s", state())
		}
	}
}

// Within repeats do until it tells of a time of at most limit. Other work on the machine makes a short limit be missed
// now and then; code that is slow misses it each time.
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
