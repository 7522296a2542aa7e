package need

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
)

// lastPort is the last result of FreePort. It starts at random, because other test processes choose ports, too.
var lastPort atomic.Int32

func init() { lastPort.Store(20000 + rand.Int32N(10000)) }

// FreePort returns a TCP port of the loopback address that nobody listens on, each time another one. It is below the
// kernel's range of ephemeral ports, so no other program gets it before its use.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := 20000 + int(lastPort.Add(1))%12000
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}
