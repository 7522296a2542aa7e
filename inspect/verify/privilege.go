package verify

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/privilege"
)

var privilegeRules = []rule{
	{Rule: Rule{
		ID: "privilege-file", Title: "No file makes somebody else of who runs it", Severity: Error,
		Why: "setuid, setgid and file capabilities are the way from the browser's account to root when a page breaks out.",
		Fix: "Remove the file. Name it in privileged only if your profile adds it on purpose.",
	}, each: privilegedFiles},
	{Rule: Rule{
		ID: "privilege-writable", Title: "Nothing is writable by everybody", Severity: Error,
		Why: "A file that every account may write, or a directory without the sticky bit, is where one program changes what another reads.",
		Fix: "Take the bit away. Name the path in privileged only if your profile adds it on purpose.",
	}, each: writableFiles},
	{Rule: Rule{
		ID: "privilege-device", Title: "There are no devices", Severity: Error,
		Why: "A device node is the disk or the memory of the machine, for whoever a runtime lets use it.",
		Fix: "Remove it; a runtime makes those that are needed.",
	}, each: deviceFiles},
	{Rule: Rule{
		ID: "privilege-sudo", Title: "Nobody has a rule of sudo", Severity: Error,
		Why: "The base gives the desktop user everything without a password.",
		Fix: "Remove the rule, and sudo with it.",
	}, each: sudoRules},
	{Rule: Rule{
		ID: "account-login", Title: "No account has a shell or a password", Severity: Error,
		Why: "An account with a shell is one su, one ssh or one cron job away from being used; one with an empty password is nobody's.",
		Fix: "Give the account /usr/sbin/nologin and a locked password.",
	}, each: accountLogins},
	{Rule: Rule{
		ID: "account-root", Title: "One account is root, and nobody is in a second group", Severity: Error,
		Why: "A second account with uid 0 is root by another name; a group such as docker, disk or shadow is as good.",
		Fix: "Remove the account, or its membership.",
	}, each: accountRoots},
}

func (h *held) eachPrivileged(visit func(f privilege.File)) {
	for _, f := range h.Surface.Privilege.Files {
		if !matchesAny(h.want.Privileged, f.Entry.Path) {
			visit(f)
		}
	}
}

func privilegedFiles(h *held) {
	h.eachPrivileged(func(f privilege.File) {
		if k := difference(f.Kinds, []string{privilege.WorldWritable, privilege.Device}); len(k) > 0 {
			h.reportFinding(f.Entry.Path, []tree.Place{f.Place}, "%s", strings.TrimSpace(fmt.Sprintf("%s (%d:%d, %04o) is %s %s", f.Entry.Path, f.Entry.UID, f.Entry.GID, f.Entry.Mode, strings.Join(k, ", "), f.Capabilities)))
		}
	})
}

func writableFiles(h *held) {
	h.eachPrivileged(func(f privilege.File) {
		if slices.Contains(f.Kinds, privilege.WorldWritable) {
			h.reportFinding(f.Entry.Path, []tree.Place{f.Place}, "everybody may write %s (%04o)", f.Entry.Path, f.Entry.Mode)
		}
	})
}

func deviceFiles(h *held) {
	for _, f := range h.Surface.Privilege.Files {
		if slices.Contains(f.Kinds, privilege.Device) {
			h.reportFinding(f.Entry.Path, []tree.Place{f.Place}, "%s is a %s device", f.Entry.Path, f.Entry.Type)
		}
	}
}

func sudoRules(h *held) {
	p := h.Surface.Privilege
	_, there := h.Files.Stat("/usr/bin/sudo")
	for _, n := range p.Sudo {
		if !there && h.grantsNothing(n.Text) {
			continue
		}
		h.reportFinding(n.Place.Path, []tree.Place{n.Place}, "a rule of sudo: %s", n.Text)
	}
}

// grantsNothing reports whether a line of sudoers grants nothing to anyone: it is about root or an empty group, or is a
// setting.
func (h *held) grantsNothing(line string) bool {
	who, _, _ := strings.Cut(strings.TrimSpace(line), " ")
	who, _, _ = strings.Cut(who, "\t")
	if who == "root" || who == "Defaults" {
		return true
	}
	name, group := strings.CutPrefix(who, "%")
	if !group {
		return false
	}
	for _, g := range h.Surface.Privilege.Groups {
		if g.Name == name {
			return !h.inGroup(g.GID)
		}
	}
	return true
}

// noShells lists shells of accounts without login.
var noShells = []string{"nologin", "false"}

func accountLogins(h *held) {
	p := h.Surface.Privilege
	for _, u := range p.Users {
		at := []tree.Place{u.Place}
		if !slices.Contains(noShells, path.Base(u.Shell)) { // an empty shell is /bin/sh (passwd(5))
			h.reportFinding(u.Name, at, "the account %s has the shell %q", u.Name, u.Shell)
		}
		if u.Password != "locked" {
			h.reportFinding(u.Name, at, "the password of %s is %s", u.Name, map[string]string{"none": "empty: anybody gets in"}[u.Password]+strings.TrimPrefix(u.Password, "none"))
		}
	}
}

func accountRoots(h *held) {
	p := h.Surface.Privilege
	for _, u := range p.Users {
		at := []tree.Place{u.Place}
		if u.UID == 0 && u.Name != "root" {
			h.reportFinding(u.Name, at, "the account %s is root by another name", u.Name)
		}
		if u.GID == 0 && u.UID != 0 {
			h.reportFinding(u.Name, at, "the account %s is in root's group", u.Name)
		}
	}
	for _, g := range p.Groups {
		if members := difference(g.Members, []string{"root"}); len(members) > 0 {
			h.reportFinding(g.Name, []tree.Place{g.Place}, "the group %s has %s", g.Name, joinNames(members))
		}
	}
}
