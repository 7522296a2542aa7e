package live

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// aptSources returns the machine's own sources of the release, so that no mirror is named here: from deb822 files and
// one-line files. It omits third-party sources.
func aptSources(etc string) ([]string, error) {
	var stanzas, rows []string
	deb822, _ := filepath.Glob(filepath.Join(etc, "sources.list.d", "*.sources"))
	lists, _ := filepath.Glob(filepath.Join(etc, "sources.list.d", "*.list"))
	for _, file := range append(append(deb822, filepath.Join(etc, "sources.list")), lists...) {
		raw, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(file, ".sources") {
			for _, stanza := range strings.Split(string(raw), "\n\n") {
				if debianStanza(stanza) {
					stanzas = append(stanzas, strings.Trim(stanza, "\n")+"\n")
				}
			}
			continue
		}
		for row := range strings.Lines(string(raw)) {
			if debianRow(row) {
				rows = append(rows, strings.TrimSpace(row)+"\n")
			}
		}
	}
	var out []string
	if len(stanzas) > 0 {
		out = append(out, strings.Join(stanzas, "\n"))
	}
	if len(rows) > 0 {
		out = append(out, strings.Join(rows, ""))
	}
	if out == nil {
		return nil, fmt.Errorf("%s names no source of Debian's %s (component main); run this on Debian 12", etc, release)
	}
	return out, nil
}

func debianStanza(stanza string) bool {
	field := map[string][]string{}
	for row := range strings.Lines(stanza) {
		if key, value, ok := strings.Cut(row, ":"); ok && !strings.HasPrefix(row, "#") {
			field[strings.ToLower(key)] = strings.Fields(value)
		}
	}
	return slices.Contains(field["types"], "deb") && slices.Contains(field["components"], "main") &&
		slices.ContainsFunc(field["suites"], ofRelease) && !slices.Contains(field["enabled"], "no")
}

func debianRow(row string) bool {
	rest, ok := strings.CutPrefix(strings.TrimSpace(row), "deb ")
	if !ok {
		return false
	}
	if at := strings.IndexByte(rest, ']'); at >= 0 { // "[signed-by=...]"
		rest = rest[at+1:]
	}
	words := strings.Fields(rest) // URI, suite, components
	return len(words) > 2 && ofRelease(words[1]) && slices.Contains(words[2:], "main")
}

func ofRelease(suite string) bool {
	return slices.Contains([]string{release, release + "-updates", release + "-security", release + "/updates"}, suite)
}

// aptOptions returns how this machine reaches its sources: proxies, and whether apt checks the age of an archive.
func aptOptions(ctx context.Context) (string, error) {
	dump, err := exec.CommandContext(ctx, "apt-config", "dump", "Acquire").Output()
	if err != nil {
		return "", fmt.Errorf("apt-config dump: %w", err)
	}
	out := "APT::Install-Recommends \"false\";\nAcquire::Languages \"none\";\n"
	for row := range strings.Lines(string(dump)) {
		for _, prefix := range []string{"Acquire::http", "Acquire::https", "Acquire::Check-", "Acquire::Retries"} {
			if strings.HasPrefix(row, prefix+"::") || strings.HasPrefix(row, prefix) && strings.HasSuffix(prefix, "-") || strings.HasPrefix(row, prefix+" ") {
				out += row
			}
		}
	}
	return out, nil
}
