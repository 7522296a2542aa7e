package need

import (
	"testing"
	"time"
)

// Patience is the longest wait for a condition. It is far longer than needed, because a machine that runs many tests at
// once may leave one without a processor for minutes. It is shorter than the limits of minutes that tests look for.
const Patience = 4 * time.Minute

// Eventually waits until ok returns true, or ends the test with the text of state: after Patience, or shortly before go
// test's own deadline, so that the test still cleans up.
func Eventually(t testing.TB, ok func() bool, state func() string) {
	t.Helper()
	limit := time.Now().Add(Patience)
	if own, is := t.(interface{ Deadline() (time.Time, bool) }); is {
		if end, set := own.Deadline(); set && end.Add(-10*time.Second).Before(limit) {
			limit = end.Add(-10 * time.Second)
		}
	}
	for ; !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
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
