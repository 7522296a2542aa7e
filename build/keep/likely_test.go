package keep_test

import (
	"testing"

	"github.com/slimctl/slimctl/build/keep"
)

func TestIsLikely(t *testing.T) {
	for p, want := range map[string]bool{
		"/usr/bin/python3.11": true, "/usr/bin/git": true, "/etc/fonts/fonts.conf": true, "/vnc": true, "/usr/lib": true,
		"/usr/lib/chromium/chromium": true, "/usr/lib/x86_64-linux-gnu/libnss3.so": true, "/usr/lib/locale/C.utf8/LC_CTYPE": true,
		"/usr/lib/locale/locale-archive": true, "/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc": true, "/usr/share/doc/gcc-12/copyright": true,
		"/usr/lib/python3/dist-packages/supervisor/http.py": true, "/var/lib/dpkg/info/format": true,
		"/usr/bin/x86_64-linux-gnu-ld.gold": false, "/usr/lib/aarch64-linux-gnu/libLLVM-14.so.1": false, "/usr/lib/jvm/java/lib/modules": false,
		"/usr/lib/locale/de_DE/LC_COLLATE": false, "/usr/share/fonts/opentype/noto/NotoSansCJK-Bold.ttc": false, "/usr/share/doc/gcc-12/NEWS": false,
		"/usr/lib/python3/dist-packages/scipy/linalg.py": false, "/opt/node-globals/node_modules/x/index.js": false, "/usr/src/x": false,
		"/usr/local/lib/libx.a": false,
	} {
		if got := keep.IsLikely(p); got != want {
			t.Errorf("%s: %v", p, got)
		}
	}
}
