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
	name := strings.Trim(notInFolder.ReplaceAllString(strings.ToLower(p.profile), "-"), "-_")
	if name == "" {
		name = "image"
	}
	return fmt.Sprintf(`# docker buildx bake            builds
# docker buildx bake --push     builds and pushes
variable "TAGS" {
  description = "names of the image, separated by commas"
  default     = "slim-%s:latest"
}

variable "BASE" {
  description = "the base, by digest; a mirror's name may stand before the digest"
  default     = %q
}

variable "SOURCE_DATE_EPOCH" {
  description = "the image's time, in seconds since 1970"
  default     = "%d"
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
