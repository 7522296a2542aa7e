// Package profiles holds the profiles that come with slimctl.
package profiles

import "embed"

// FS holds every profile as NAME.yaml, and schema.json, which editors complete them by.
//
//go:embed *.yaml schema.json
var FS embed.FS
