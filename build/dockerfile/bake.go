package dockerfile

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// bake returns docker-bake.hcl. Its callers have checked the names and values: a base reference, platforms.
func bake(p *plan, b base) string {
	quoted := make([]string, len(p.stages))
	for i, s := range p.stages {
		quoted[i] = strconv.Quote(s.platform)
	}
	name := plainName(p.profile)
	if name == "" {
		name = "image"
	}
	contexts := ""
	if b.layout != "" {
		contexts = fmt.Sprintf("\n  contexts   = { %q = %q }", layoutName, b.layout)
	}
	where := "index,manifest" // an image of one platform has no index of ours
	if len(p.stages) == 1 {
		where = "manifest"
	}
	var annotations []string
	for _, k := range slices.Sorted(maps.Keys(b.annotations)) {
		annotations = append(annotations, strconv.Quote(where+":"+k+"="+b.annotations[k]))
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
  context    = "."%s
  dockerfile = "Dockerfile"
  platforms  = [%s]
  tags       = compact(split(",", TAGS))
  # What the image is made from, as slimctl build writes it and slimctl verify wants it.
  annotations = [%s]
  args = {
    BASE              = BASE
    SOURCE_DATE_EPOCH = SOURCE_DATE_EPOCH
  }
}
`, name, b.from, p.epoch, contexts, strings.Join(quoted, ", "), strings.Join(annotations, ", "))
}
