package e2e

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/need"
)

// fontPackages are Debian's, and what of them the base of TestFonts has; of each one file stays in l1.
var fontPackages = map[string][]string{
	"fonts-noto-cjk":  {"opentype/noto/NotoSansCJK-Regular.ttc", "opentype/noto/NotoSansCJK-Bold.ttc"},
	"fonts-noto-core": {"truetype/noto/NotoSansArabic-Regular.ttf", "truetype/noto/NotoSerif-Regular.ttf"},
}

// fontBase is the live stand-in of line B with real fonts.
func fontBase(t *testing.T) string {
	t.Helper()
	ref := standin(t)
	status := string(readFile(t, ref, "/var/lib/dpkg/status"))
	var files []image.File
	for name, fonts := range fontPackages {
		dir := need.DebianPackage(t, name)
		list := "/.\n"
		for _, font := range fonts {
			path := "/usr/share/fonts/" + font
			data, err := os.ReadFile(filepath.Join(dir, path))
			if err != nil {
				t.Fatal(err)
			}
			list += path + "\n"
			files = append(files, image.Bytes(path, 0o644, data))
		}
		files = append(files, image.Bytes("/var/lib/dpkg/info/"+name+".list", 0o644, []byte(list)))
		status += "Package: " + name + "\nStatus: install ok installed\nArchitecture: all\nVersion: 1\n\n"
	}
	return withFiles(t, ref, append(files, image.Bytes("/var/lib/dpkg/status", 0o644, []byte(status)))...)
}

// glyphs draws texts by families, and gives the pictures.
const glyphs = `JSON.stringify(Object.fromEntries([
	["中文", "sans-serif"], ["日本語", "serif"], ["한국어", "monospace"], ["العربية", "sans-serif"], ["\u{10fffd}", "sans-serif"],
	...["sans-serif", "serif", "monospace", "system-ui", "'Liberation Sans'", "'Liberation Serif'", "'Liberation Mono'"].map(f => ["Quick iiWW", f]),
].map(([text, family]) => {
	const c = document.createElement("canvas"), x = c.getContext("2d");
	x.font = "32px " + family;
	x.fillText(text, 5, 45);
	return [text + " " + family, c.toDataURL()];
})))`

// TestFonts: of a base with many fonts l1 keeps some; it draws Chinese, Japanese, Korean and Arabic, no boxes, as l0 does, and the
// generic families are drawn by the fonts that it says, whatever else is there.
func TestFonts(t *testing.T) {
	t.Parallel()
	need.Containers(t)
	base := fontBase(t)
	pictures := map[string]map[string]string{}
	for _, profile := range []string{"l0-native", "l1"} {
		ref := build(t, profile, base)
		b := boot(t, newWorld(t), ref, nil)
		b.healthy(t)
		text, _ := b.devTools().attach(t, func(tab target) bool { return tab.Type == "page" }).must(t, glyphs).(string)
		var drawn map[string]string
		if err := json.Unmarshal([]byte(text), &drawn); err != nil {
			t.Fatalf("%v: %.200s", err, text)
		}
		pictures[profile] = drawn
		if profile == "l1" {
			root, err := os.OpenRoot(mountImage(t, ref))
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			kept, err := fs.Glob(root.FS(), "usr/share/fonts/*/noto/Noto*")
			if got := strings.Join(kept, " "); err != nil || got != "usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc usr/share/fonts/truetype/noto/NotoSansArabic-Regular.ttf" {
				t.Errorf("fonts that stay: %s, %v", got, err)
			}
		}
	}
	l0, l1 := pictures["l0-native"], pictures["l1"]
	for _, text := range []string{"中文 sans-serif", "日本語 serif", "한국어 monospace", "العربية sans-serif"} {
		if l1[text] == "" || l1[text] == l1["\U0010fffd sans-serif"] {
			t.Errorf("%s is drawn as boxes", text)
		}
		if l1[text] != l0[text] {
			t.Errorf("%s is drawn otherwise than by l0:\n%s\n%s", text, l1[text], l0[text])
		}
	}
	for family, font := range map[string]string{"sans-serif": "Sans", "serif": "Serif", "monospace": "Mono", "system-ui": "Sans"} {
		if got, want := l1["Quick iiWW "+family], l1["Quick iiWW 'Liberation "+font+"'"]; got == "" || got != want {
			t.Errorf("%s isn't drawn by Liberation %s:\n%s\n%s", family, font, got, want)
		}
		t.Logf("l0: %s is drawn by Liberation %s: %t", family, font, l0["Quick iiWW "+family] == l0["Quick iiWW 'Liberation "+font+"'"])
	}
}
