package dockerfile

import (
	"fmt"
	"strconv"
	"strings"
)

// bake is docker-bake.hcl. Names and values in it are checked before they come here: a base reference, platforms.
func bake(p *plan, base string) string {
	quoted := make([]string, len(p.stages))
	for i, s := range p.stages {
		quoted[i] = strconv.Quote(s.platform)
	}
	name := plainName(p.profile)
	if name == "" {
		name = "image"
	}
	return fmt.Sprintf(`# docker buildx bake            builds
# docker buildx bake --push     builds and pushes
# Names of the image, separated by commas.
variable "TAGS" {
  default = "slim-%s:latest"
}

# The base, by digest; a mirror's name may stand before the digest.
variable "BASE" {
  default = %q
}

# The image's time, in seconds since 1970.
variable "SOURCE_DATE_EPOCH" {
  default = "%d"
}

group "default" {
  targets = ["image"]
}

target "image" {
  context    = "."
  dockerfile = "Dockerfile"
  platforms  = [%s]
  tags       = compact(split(",", TAGS))
  args = {
    BASE              = BASE
    SOURCE_DATE_EPOCH = SOURCE_DATE_EPOCH
  }
}
`, name, base, p.epoch, strings.Join(quoted, ", "))
}
