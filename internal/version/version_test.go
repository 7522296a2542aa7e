package version

import (
	"runtime/debug"
	"testing"
)

func TestOf(t *testing.T) {
	settings := []debug.BuildSetting{
		{Key: "GOOS", Value: "linux"}, {Key: "GOARCH", Value: "arm64"},
		{Key: "vcs.revision", Value: "0123456789abcdef0123"}, {Key: "vcs.modified", Value: "true"},
	}
	for want, info := range map[string]*debug.BuildInfo{
		"v1.2.3 (commit 0123456789ab, modified, go1.26, linux/arm64)": {GoVersion: "go1.26", Main: debug.Module{Version: "v1.2.3"}, Settings: settings},
		"v1.2.3 (commit unknown, go1.26, linux/arm64)":                {GoVersion: "go1.26", Main: debug.Module{Version: "v1.2.3"}, Settings: settings[:2]},
		"(devel) (commit unknown, , /)":                               {},
	} {
		if got := Of(info).String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := Read(); got.Go == "" || got.Platform == "" {
		t.Errorf("%+v", got)
	}
}
