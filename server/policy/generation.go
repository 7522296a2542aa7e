package policy

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// Generation is a family of agent-browser builds with a common grammar.
type Generation string

// The two generations. The empty Generation in a table row means both.
const (
	Node   Generation = "0.8"    // 0.8 to 0.19: Rust CLI, Node daemon
	Native Generation = "native" // 0.34 and later: one native binary that can pin its tab
)

// The minor versions with known behaviour; others are refused. 0.20 to 0.33 are native but can't pin a session to its
// tab.
const (
	firstMinor  = 8
	lastNode    = 19
	firstNative = 34
	lastMinor   = 41
)

// Version is the version of an agent-browser binary: 0.Minor.Patch.
type Version struct{ Minor, Patch int }

var install = fmt.Sprintf("install a version from 0.%d to 0.%d or from 0.%d to 0.%d", firstMinor, lastNode, firstNative, lastMinor)

var versionLine = lazyregexp.New(`^agent-browser 0\.([0-9]{1,3})\.([0-9]{1,4})$`)

// ParseVersion parses the output of `agent-browser --version`. It refuses versions without a known grammar: a newer one
// may have options that the table lacks.
func ParseVersion(out string) (Version, error) {
	m := versionLine.FindStringSubmatch(strings.TrimSpace(out))
	if m == nil {
		return Version{}, fmt.Errorf("agent-browser --version did not answer `agent-browser 0.x.y`: %s", install)
	}
	minor, _ := strconv.Atoi(m[1]) // the pattern admits digits only
	patch, _ := strconv.Atoi(m[2])
	v := Version{Minor: minor, Patch: patch}
	if minor < firstMinor || minor > lastNode && minor < firstNative || minor > lastMinor {
		return Version{}, fmt.Errorf("agent-browser %s has no known grammar: %s", v, install)
	}
	return v, nil
}

func (v Version) String() string { return fmt.Sprintf("0.%d.%d", v.Minor, v.Patch) }

// Generation returns the generation whose rows of the grammar apply.
func (v Version) Generation() Generation {
	if v.Minor >= firstNative {
		return Native
	}
	return Node
}
