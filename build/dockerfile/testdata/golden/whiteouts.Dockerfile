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
# Each overlay is one archive: its files with their modes and owners, and the base's own mode and owner of
# every directory that they lie in, such as 1777 of /tmp. `tar tvf` lists it. ADD --link makes one layer of it
# that doesn't depend on the base.
#
# Limits: the times of files and of the image are the build's own unless the build sets SOURCE_DATE_EPOCH, as
# docker-bake.hcl does, and the output rewrite-timestamp=true. WORKDIR makes its directory, and RUN makes
# /dev, /proc and /sys, where the base has none.

ARG BASE=registry.test/aio/sandbox:1.0@sha256:1111111111111111111111111111111111111111111111111111111111111111

FROM --platform=linux/amd64 ${BASE} AS slim-amd64

# The removals as whiteouts (OCI image specification, layer.md). BuildKit itself doesn't obey them: a RUN
# after this line would still see the removed paths, and so may an image that is loaded into a local store.
# What is pushed or written as an archive is right. removals/amd64.tar removes:
# - a second way to drive the browser; only browser-shell may
#     /srv/app/a
#     /tmp/x
# - an editor
#     /opt/gone
ADD --link removals/amd64.tar /

# payload: agent-browser 0.8.10
ADD --link overlay/amd64/payload.tar /

# confs: one public server
ADD --link overlay/amd64/confs.tar /

FROM --platform=linux/arm64 ${BASE} AS slim-arm64

# The removals as whiteouts (OCI image specification, layer.md). BuildKit itself doesn't obey them: a RUN
# after this line would still see the removed paths, and so may an image that is loaded into a local store.
# What is pushed or written as an archive is right. removals/arm64.tar removes:
# - a second way to drive the browser; only browser-shell may
#     /srv/app/a
#     /tmp/x
# - an editor
#     /opt/gone
ADD --link removals/arm64.tar /

# payload: agent-browser 0.8.10
ADD --link overlay/arm64/payload.tar /

# confs: one public server
ADD --link overlay/arm64/confs.tar /

# WORKDIR below looks into the base, so that BuildKit has to fetch and unpack it in spite of the whiteouts.
#
# What is built for a platform is that platform's stage; other platforms than those above have none.
FROM slim-${TARGETARCH}${TARGETVARIANT}

ENV CHANGE="a \"b\" \$c \\"
LABEL "org.example.title"="slim"
WORKDIR "/srv/app/keep"
HEALTHCHECK --interval=1m0s CMD ["/bin/agent", "ok"]
ENTRYPOINT ["/bin/agent", "$HOME"]
