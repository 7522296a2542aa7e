# docker buildx bake            builds
# docker buildx bake --push     builds and pushes
# Names of the image, separated by commas.
variable "TAGS" {
  default = "slim-l0:latest"
}

# The base, by digest; a mirror's name may stand before the digest.
variable "BASE" {
  default = "registry.test/aio/sandbox:1.0@sha256:1111111111111111111111111111111111111111111111111111111111111111"
}

# The image's time, in seconds since 1970.
variable "SOURCE_DATE_EPOCH" {
  default = "1772600767"
}

group "default" {
  targets = ["image"]
}

target "image" {
  context    = "."
  dockerfile = "Dockerfile"
  platforms  = ["linux/amd64", "linux/arm64"]
  tags       = compact(split(",", TAGS))
  # What the image is made from, as slimctl build writes it and slimctl verify wants it.
  annotations = ["index,manifest:org.opencontainers.image.base.digest=sha256:1111111111111111111111111111111111111111111111111111111111111111", "index,manifest:org.opencontainers.image.base.name=registry.test/aio/sandbox:1.0"]
  args = {
    BASE              = BASE
    SOURCE_DATE_EPOCH = SOURCE_DATE_EPOCH
  }
}
