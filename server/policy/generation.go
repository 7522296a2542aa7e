package policy

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Generation is the family of agent-browser builds that share one grammar.
type Generation string

// The two generations. The empty Generation in a table row means both.
const (
	Node   Generation = "0.8"    // 0.8 to 0.19: Rust CLI, Node daemon
	Native Generation = "native" // 0.20 and later: one native binary
)

// The minor versions whose behaviour is known; others are refused.
const (
	firstMinor  = 8
	firstNative = 20
	firstPinTab = 34
	lastMinor   = 41
)

// Version is the version of an agent-browser binary: 0.Minor.Patch.
type Version struct{ Minor, Patch int }

var versionLine = regexp.MustCompile(`^agent-browser 0\.([0-9]{1,3})\.([0-9]{1,4})$`)

// ParseVersion reads the output of `agent-browser --version`. It refuses
// anything but a version with a known grammar: a newer one may have options
// that the table does not know.
func ParseVersion(out string) (Version, error) {
	m := versionLine.FindStringSubmatch(strings.TrimSpace(out))
	if m == nil {
		return Version{}, fmt.Errorf("agent-browser --version did not answer `agent-browser 0.x.y`: install a version from 0.%d to 0.%d", firstMinor, lastMinor)
	}
	minor, _ := strconv.Atoi(m[1]) // the pattern admits digits only
	patch, _ := strconv.Atoi(m[2])
	v := Version{Minor: minor, Patch: patch}
	if minor < firstMinor || minor > lastMinor {
		return Version{}, fmt.Errorf("agent-browser %s has no known grammar: install a version from 0.%d to 0.%d", v, firstMinor, lastMinor)
	}
	return v, nil
}

func (v Version) String() string { return fmt.Sprintf("0.%d.%d", v.Minor, v.Patch) }

// Generation tells which rows of the grammar apply.
func (v Version) Generation() Generation {
	if v.Minor >= firstNative {
		return Native
	}
	return Node
}

// PinsTabs tells whether the version has --pin-tab, which gives each session
// its own tab.
func (v Version) PinsTabs() bool { return v.Minor >= firstPinTab }
