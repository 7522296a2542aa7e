package privilege

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/ocitest"
	"github.com/slimctl/slimctl/internal/standin"
)

// report reads an image of text files, given by their paths.
func report(t *testing.T, files map[string]string, more ...image.File) *Report {
	t.Helper()
	for p, text := range files {
		more = append(more, image.Bytes(p, 0o440, []byte(text)))
	}
	img, err := tree.FromFiles(t.Context(), nil, more...)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Read(t.Context(), img)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func texts(notes []tree.Note) []string {
	var out []string
	for _, n := range notes {
		out = append(out, n.String())
	}
	return out
}

func lines(l ...string) string { return strings.Join(l, "\n") + "\n" }

func TestAccounts(t *testing.T) {
	r := report(t, map[string]string{
		"/etc/passwd": lines(
			"root:x:0:0:root:/root:/bin/bash",
			"# a comment",
			"",
			"toor::0:0", // glibc lets root in by this name, without a password
			"spaced:*: 0:+7:::",
			"old:$1$hash:5:5::/:/bin/sh",
			"gem:x:1000:1000:,,,:/home/gem:/bin/sh:more",
			"root:x:7:7::/:/bin/sh",
			"lost:x:8:8::/:",
			"word:x:many:8::/:",
			"minus:x:-1:8::/:",
			"+nis::::::",
			":x:9:9::/:",
			"big:x:4294967296:0::/:",
			"nobody:x:65534:65534::/:/bin/false",
		),
		"/etc/shadow": lines("root:*:1::::::", "gem:$y$x:1:0:99999:7:::", "nobody::1:0:99999:7:::", "nobody:!:1:0:99999:7:::"),
		"/etc/group": lines("root:x:0:", "sudo:x:27:gem, root,", "open:secret:28:", "wheel:x:29:", "none::30:a", "bad:x:x:",
			"short:x"),
		"/etc/gshadow": lines("wheel:$6$x::", "sudo:!::gem"),
	})
	users := []User{
		{Name: "root", UID: 0, Home: "/root", Shell: "/bin/bash", Password: "locked"},
		{Name: "toor", Password: "none"},
		{Name: "spaced", GID: 7, Password: "locked"},
		{Name: "old", UID: 5, GID: 5, Home: "/", Shell: "/bin/sh", Password: "set"},
		{Name: "gem", UID: 1000, GID: 1000, Home: "/home/gem", Shell: "/bin/sh:more", Password: "set"},
		{Name: "lost", UID: 8, GID: 8, Home: "/", Password: "locked"},
		{Name: "nobody", UID: 65534, GID: 65534, Home: "/", Shell: "/bin/false", Password: "none"},
	}
	if diff := cmp.Diff(users, r.Users, cmpopts.IgnoreFields(User{}, "Place")); diff != "" {
		t.Errorf("users (-want +got):\n%s", diff)
	}
	if at := r.Users[1].Place; at.String() != "/etc/passwd:4" || at.Layer == "" {
		t.Errorf("toor is at %+v", at)
	}
	groups := []Group{
		{Name: "root"},
		{Name: "sudo", GID: 27, Members: []string{"gem", "root"}},
		{Name: "open", GID: 28, Password: "set"},
		{Name: "wheel", GID: 29, Password: "set"},
		{Name: "none", GID: 30, Members: []string{"a"}},
	}
	if diff := cmp.Diff(groups, r.Groups, cmpopts.IgnoreFields(Group{}, "Place")); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	notes := []string{
		"/etc/shadow:4: nobody has no effect: line 3 has the same name",
		"/etc/passwd:4: the line has 4 fields, not 7",
		"/etc/passwd:7: the line has 8 fields, not 7",
		"/etc/passwd:8: root has no effect: line 1 has the same name",
		"/etc/passwd:12: not the name of an account: a lookup elsewhere, or nothing",
		"/etc/passwd:13: not the name of an account: a lookup elsewhere, or nothing",
		`/etc/passwd:5: spaced: the id " 0" is a number for some programs and none for others`,
		`/etc/passwd:5: spaced: the id "+7" is a number for some programs and none for others`,
		`/etc/passwd:10: word has no effect: its id is "many"`,
		`/etc/passwd:11: minus has no effect: its id is "-1"`,
		`/etc/passwd:14: big has no effect: its id is "4294967296"`,
		"/etc/group:7: the line has 2 fields, not 4",
		`/etc/group:6: bad has no effect: its id is "x"`,
		`/etc/group:7: short has no effect: its id is ""`,
	}
	if diff := cmp.Diff(notes, texts(r.Notes)); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

func TestSudo(t *testing.T) {
	open := image.Bytes("/etc/sudoers.d/open", 0o666, []byte("open ALL=(ALL) ALL\n"))
	gems := image.Bytes("/etc/sudoers.d/gems", 0o440, []byte("gem ALL=(ALL) ALL\n"))
	gems.UID = 1000
	r := report(t, map[string]string{
		"/etc/sudo.conf": "# Plugin x sudoers_file=/no\nPlugin sudoers_policy sudoers.so sudoers_file=/etc/other\n",
		"/etc/sudoers": lines(
			"# nothing but a comment",
			"Defaults\tenv_reset # and a comment",
			`Defaults badpass_message="No # entry"`,
			"#1000 ALL=(ALL) NOPASSWD: ALL",
			"%#27 ALL = (#0) /bin/ls # list",
			`gem ALL=(ALL) \`,
			`   NOPASSWD: /bin/a, \`,
			"   /bin/b",
			"#include /etc/one",
			"#included is a comment",
			"@include sub/two",
			"@include \"/etc/with space\"",
			"@include /etc/missing",
			"  @includedir /etc/sudoers.d",
			"@include /etc/sudoers.d/%h",
			"@include /etc/sudoers",
			"this is nothing",
			"User_Alias ADMINS = gem",
			`last ALL=(ALL) /bin/sh \#x\`,
		),
		"/etc/one":               "one ALL=(ALL) ALL\n",
		"/etc/sub/two":           "two ALL=(ALL) ALL\n@include three\n",
		"/etc/sub/three":         "three ALL=(ALL) ALL\n",
		"/etc/with space":        "space ALL=(ALL) ALL",
		"/etc/sudoers.d/gem":     "gem ALL=(ALL) NOPASSWD:ALL\n",
		"/etc/sudoers.d/x.bak":   "bak ALL=(ALL) ALL\n",
		"/etc/sudoers.d/x~":      "tilde ALL=(ALL) ALL\n",
		"/etc/sudoers.d/sub/not": "sub ALL=(ALL) ALL\n",
	}, open, gems, image.Symlink("/etc/sudoers.d/dangling", "/nowhere"))
	rules := []string{
		"/etc/sudoers:2: Defaults\tenv_reset",
		`/etc/sudoers:3: Defaults badpass_message="No # entry"`,
		"/etc/sudoers:4: #1000 ALL=(ALL) NOPASSWD: ALL",
		"/etc/sudoers:5: %#27 ALL = (#0) /bin/ls",
		"/etc/sudoers:6: gem ALL=(ALL)    NOPASSWD: /bin/a,    /bin/b",
		"/etc/one:1: one ALL=(ALL) ALL",
		"/etc/sub/two:1: two ALL=(ALL) ALL",
		"/etc/sub/three:1: three ALL=(ALL) ALL",
		"/etc/with space:1: space ALL=(ALL) ALL",
		"/etc/sudoers.d/gem:1: gem ALL=(ALL) NOPASSWD:ALL",
		"/etc/sudoers.d/gems:1: gem ALL=(ALL) ALL",
		"/etc/sudoers.d/open:1: open ALL=(ALL) ALL",
		"/etc/sudoers:18: User_Alias ADMINS = gem",
		`/etc/sudoers:19: last ALL=(ALL) /bin/sh \#x`,
	}
	if diff := cmp.Diff(rules, texts(r.Sudo)); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	notes := []string{
		"/etc/sudoers.d/dangling: a symlink that leads nowhere",
		"/etc/sudo.conf:2: sudo's rules are read from another file: Plugin sudoers_policy sudoers.so sudoers_file=/etc/other",
		"/etc/sudoers:13: /etc/missing is included and not there",
		"/etc/sudoers.d/gems: sudo ignores it: others may write it (mode 0440, owner 1000:0)",
		"/etc/sudoers.d/open: sudo ignores it: others may write it (mode 0666, owner 0:0)",
		"/etc/sudoers:15: the included file depends on the host's name: /etc/sudoers.d/%h",
		"/etc/sudoers:16: the file includes /etc/sudoers again",
		`/etc/sudoers:17: sudo makes nothing of it: "this is nothing"`,
	}
	if diff := cmp.Diff(notes, texts(r.Notes)); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

// TestSudoIsBounded has rules that a hostile image makes endless.
func TestSudoIsBounded(t *testing.T) {
	chain := map[string]string{"/etc/sudoers": "@include /etc/chain-0\n"}
	for i := range 200 {
		chain[fmt.Sprintf("/etc/chain-%d", i)] = fmt.Sprintf("u%d ALL=(ALL) ALL\n@include /etc/chain-%d\n", i, i+1)
	}
	for name, files := range map[string]map[string]string{
		"a chain":    chain,
		"many rules": {"/etc/sudoers": strings.Repeat("a b=c\n", maxRules+10)},
		"many notes": {"/etc/sudoers": strings.Repeat("a b c\n", maxNotes+10)},
		"too large":  {"/etc/sudoers": strings.Repeat("a b=c\n", maxRead/6+1)},
		"many times": {"/etc/sudoers": strings.Repeat("@includedir /etc/none\n", maxDirectives+10)},
		"members":    {"/etc/group": "g:x:1:" + strings.Repeat("a,", 100_000) + "\n"},
		"one line":   {"/etc/sudoers": strings.Repeat("a b=c\\\n", 100_000)},
	} {
		r := report(t, files)
		if len(r.Sudo) > maxRules || len(r.Notes) > maxNotes+1 {
			t.Errorf("%s: %d rules, %d notes", name, len(r.Sudo), len(r.Notes))
		}
		if name != "one line" && len(r.Notes) == 0 {
			t.Errorf("%s: no note", name)
		}
		for _, g := range r.Groups {
			if len(g.Members) > maxMembers {
				t.Errorf("%s: %d members", name, len(g.Members))
			}
		}
	}
}

// TestStandIns has what the base and the accounts of the closed image say.
func TestStandIns(t *testing.T) {
	for _, line := range []string{"A", "B", "C"} {
		dir := filepath.Join(t.TempDir(), "base")
		if _, err := standin.Write(t.Context(), dir, standin.Options{Line: line, Platforms: []string{"linux/amd64"}}); err != nil {
			t.Fatal(err)
		}
		img, err := tree.Cache{}.Open(t.Context(), ocitest.Layout(t, dir)["linux/amd64"], tree.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := Read(t.Context(), img)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Users) != 7 || r.Users[0].Shell != "/bin/bash" || r.Users[0].Password != "locked" {
			t.Errorf("%s: users are %+v", line, r.Users)
		}
		if !slices.ContainsFunc(r.Groups, func(g Group) bool { return g.Name == "sudo" && g.GID == 27 }) {
			t.Errorf("%s: groups are %+v", line, r.Groups)
		}
		want := []string{
			"/etc/sudoers:1: Defaults\tenv_reset",
			"/etc/sudoers:2: Defaults\tsecure_path=\"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"",
			"/etc/sudoers:3: root\tALL=(ALL:ALL) ALL",
			"/etc/sudoers:4: %sudo\tALL=(ALL:ALL) ALL",
		}
		if diff := cmp.Diff(want, texts(r.Sudo)); diff != "" {
			t.Errorf("%s: rules (-want +got):\n%s", line, diff)
		}
		var files []string
		for _, f := range r.Files {
			p := strings.Replace(f.Entry.Path, "/opt/browser/current/", "/opt/browser/", 1) // line A's
			files = append(files, strings.TrimSpace(p+" "+strings.Join(f.Kinds, " ")+" "+f.Capabilities))
		}
		want = []string{
			"/opt/browser/chrome-sandbox setuid", "/usr/bin/chage setgid", "/usr/bin/passwd setuid",
			"/usr/bin/ping capability cap_net_raw=ep", "/usr/bin/su setuid", "/usr/bin/sudo setuid",
		}
		if diff := cmp.Diff(want, files); diff != "" {
			t.Errorf("%s: files (-want +got):\n%s", line, diff)
		}
	}
}

// TestClosedAccounts has the accounts of the closed image: none has a shell, nor a password.
func TestClosedAccounts(t *testing.T) {
	files := map[string]string{}
	for _, name := range []string{"passwd", "shadow", "group"} {
		data, err := assets.FS.ReadFile("accounts/" + name)
		if err != nil {
			t.Fatal(err)
		}
		files["/etc/"+name] = string(data)
	}
	r := report(t, files)
	if len(r.Notes) > 0 || len(r.Sudo) > 0 || len(r.Users) != 4 {
		t.Fatalf("%d users, notes %v, rules %v", len(r.Users), r.Notes, r.Sudo)
	}
	for _, u := range r.Users {
		if u.Password != "locked" || u.UID == 0 && u.Name != "root" {
			t.Errorf("%+v", u)
		}
	}
}
