# check=skip=FromPlatformFlagConstDisallowed

# Made by slimctl dockerfile from profile l0 for line B of the base. Don't edit: change the profile and render
# it again.
#
# Build it here with: docker buildx bake. Names: TAGS=registry/name:tag,... BASE=a mirror of
# registry.test/aio/sandbox:1.0@sha256:1111111111111111111111111111111111111111111111111111111111111111.
#
# Without bake give the annotations, which slimctl verify wants: --annotation
# "index,manifest:org.opencontainers.image.base.digest=sha256:1111111111111111111111111111111111111111111111111111111111111111"
# for several platforms, "manifest:..." for one.
#
# There is no syntax line: all of this is in the frontend that every BuildKit since v0.10 (Docker 23) has
# built in, and a syntax line would fetch a program from Docker Hub and run it.
#
# Each overlay is put together in a stage of its own, with its modes, its owners and, from directories.tar,
# the base's own mode and owner of every directory it lies in, such as 1777 of /tmp. COPY --link then adds it
# as one layer that doesn't depend on the base; it does so only without --chmod.
#
# Limits: the times of files and of the image are the build's own unless the build sets SOURCE_DATE_EPOCH, as
# docker-bake.hcl does, and the output rewrite-timestamp=true. WORKDIR makes its directory, and RUN makes
# /dev, /proc and /sys, where the base has none.

ARG BASE=registry.test/aio/sandbox:1.0@sha256:1111111111111111111111111111111111111111111111111111111111111111

# payload: agent-browser 0.8.10
FROM scratch AS overlay-payload-amd64
COPY --chown=0:0 --chmod=0755 overlay/amd64/payload/0755/ /
COPY --chown=0:0 --chmod=0644 overlay/common/payload/0644/ /
COPY --chown=0:0 overlay/common/payload/symlinks/ /
ADD overlay/amd64/payload/directories.tar /

# confs: one public server
FROM scratch AS overlay-confs-amd64
COPY --chown=1000:1000 --chmod=0640 overlay/common/confs/0640-1000-1000/ /
ADD overlay/amd64/confs/special.tar /
ADD overlay/amd64/confs/directories.tar /

FROM --platform=linux/amd64 ${BASE} AS slim-amd64

# Only root may remove everything; the base's user comes back below.
USER 0:0
RUN ["/bin/rm", "-rf", "--", \
# a second way to drive the browser; only browser-shell may
    "/srv/app/a", \
    "/tmp/x", \
# an editor
    "/opt/gone"]
USER gem

COPY --link --from=overlay-payload-amd64 / /
COPY --link --from=overlay-confs-amd64 / /

# payload: agent-browser 0.8.10
FROM scratch AS overlay-payload-arm64
COPY --chown=0:0 --chmod=0755 overlay/arm64/payload/0755/ /
COPY --chown=0:0 --chmod=0644 overlay/common/payload/0644/ /
COPY --chown=0:0 overlay/common/payload/symlinks/ /
ADD overlay/arm64/payload/directories.tar /

# confs: one public server
FROM scratch AS overlay-confs-arm64
COPY --chown=1000:1000 --chmod=0640 overlay/common/confs/0640-1000-1000/ /
ADD overlay/arm64/confs/special.tar /
ADD overlay/arm64/confs/directories.tar /

FROM --platform=linux/arm64 ${BASE} AS slim-arm64

# Only root may remove everything; the base's user comes back below.
USER 0:0
RUN ["/bin/rm", "-rf", "--", \
# a second way to drive the browser; only browser-shell may
    "/srv/app/a", \
    "/tmp/x", \
# an editor
    "/opt/gone"]
USER gem

COPY --link --from=overlay-payload-arm64 / /
COPY --link --from=overlay-confs-arm64 / /

# What is built for a platform is that platform's stage; other platforms than those above have none.
FROM slim-${TARGETARCH}${TARGETVARIANT}

ENV CHANGE="a \"b\" \$c \\"
LABEL "org.example.title"="slim"
WORKDIR "/srv/app/keep"
HEALTHCHECK --interval=1m0s CMD ["/bin/agent", "ok"]
ENTRYPOINT ["/bin/agent", "$HOME"]
