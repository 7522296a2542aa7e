package privilege

import (
	"strings"
	"testing"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// FuzzRead feeds the reader accounts and rules of sudo. What it says lies in lines that are there, and nothing is said twice.
func FuzzRead(f *testing.F) {
	f.Add("root:x:0:0::/:/bin/sh\ntoor::0:0\n", "root:*:1::::::\n", "sudo:x:27:a,b\n", "a ALL=(ALL) \\\nALL # x\n@include /etc/sudoers\n#includedir /etc/sudoers.d")
	f.Add("a:x: 0:+1:::\n:\n+::::::", "a::", "x:y", "@include\n@includedir \"/\"\n\\\n\\")
	img, err := tree.FromFiles(f.Context(), nil, image.Bytes("/etc/sudoers.d/x", 0o440, []byte("x ALL=ALL\n")), image.Bytes("/etc/sudoers", 0o440, nil))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, passwd, shadow, group, sudoers string) {
		r := newReader(t.Context(), img)
		lines := map[string]int{"/etc/sudoers.d/x": 1}
		for p, text := range map[string]string{passwdFile: passwd, shadowFile: shadow, groupFile: group, sudoersFile: sudoers} {
			r.files[p], r.tried[p] = text, true
			lines[p] = strings.Count(text, "\n") + 1
		}
		r.users()
		r.groups()
		if err := r.sudo(); err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, u := range r.report.Users {
			if names[u.Name] || u.Name == "" || u.UID < 0 || u.UID > 1<<32-1 || u.Place.Line < 1 || u.Place.Line > lines[passwdFile] {
				t.Fatalf("%+v", u)
			}
			names[u.Name] = true
		}
		for _, rule := range append(r.report.Sudo, r.report.Notes...) {
			if n, ok := lines[rule.Place.Path]; ok && rule.Place.Line > n {
				t.Fatalf("%s has %d lines: %v", rule.Place.Path, n, rule)
			}
		}
	})
}
