//go:build embedserver

package overlays

import "embed"

//go:embed bin/browser-shell-linux-amd64 bin/browser-shell-linux-arm64
var serverBinaries embed.FS

// embeddedServer gives the binary that `make release` put in bin/.
func embeddedServer(arch string) ([]byte, error) {
	return serverBinaries.ReadFile("bin/browser-shell-linux-" + arch)
}
