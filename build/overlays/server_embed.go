//go:build embedserver

package overlays

import _ "embed"

//go:embed bin/browser-shell-linux-amd64
var serverAMD64 []byte

//go:embed bin/browser-shell-linux-arm64
var serverARM64 []byte

// embeddedServer returns the binary that `make release` put in bin/, as it is embedded in slimctl.
func embeddedServer(arch string) []byte {
	return map[string][]byte{"amd64": serverAMD64, "arm64": serverARM64}[arch]
}
