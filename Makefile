.PHONY: build test lint generate bench conformance embed release

build: ## ./slimctl
	go build -o slimctl ./cmd/slimctl

test: ## all tests, with what they need
	scripts/test

lint: ## golangci-lint, in the version that .golangci.yml was written for
	go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0 run

generate: ## the schemas, what makes Chromium use the proxy, and docs/cli.md
	go test ./cmd/slimctl -run TestCommandReference -update
	go test ./build/profile -run TestSchemaIsCommitted -update
	go test ./server/policy -run TestSchemaAsset -update
	go run ./cmd/browser-shell chromium-policy --policy assets/policy/browser-shell.policy.json >managed-policy.tmp
	mv managed-policy.tmp assets/chromium/managed-policy.json

conformance: ## the MCP conformance suite and Inspector against browser-shell; see docs/mcp.md
	scripts/conformance

bench: ## embedded engine against buildkitd; see bench/README.md
	bash bench/run

# A slimctl that carries browser-shell has the bytes that any other of the same source compiles (build/overlays: serverFlags, goEnv).
BIN = build/overlays/bin
GO = $(shell sed -n 's/^go //p' go.mod)
ARCHES = amd64 arm64
embed: ## browser-shell for both architectures, where -tags embedserver looks for it
	mkdir -p $(BIN)
	for arch in $(ARCHES); do \
	  env -u GOEXPERIMENT -u GODEBUG CGO_ENABLED=0 GOOS=linux GOARCH=$$arch GOAMD64=v1 GOARM64=v8.0 GOFLAGS=-trimpath GOWORK=off GOFIPS140=off GOTOOLCHAIN=go$(GO) \
	    go build -tags nethttpomithttp2 -trimpath -buildvcs=false -gcflags=all=-dwarf=false -ldflags '-s -w -buildid=' \
	    -o $(BIN)/browser-shell-linux-$$arch ./cmd/browser-shell || exit 1; \
	done

release: embed ## dist/: slimctl with browser-shell for both architectures inside, browser-shell by itself, mcp-hub, manual pages
	mkdir -p dist
	cp $(BIN)/browser-shell-linux-* dist/
	for target in linux/amd64 linux/arm64 darwin/arm64; do \
	  CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/} go build -tags embedserver -trimpath -buildvcs=true -ldflags '-s -w' \
	    -o dist/slimctl-$${target%/*}-$${target#*/} ./cmd/slimctl && \
	  CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/} go build -trimpath -buildvcs=true -ldflags '-s -w' \
	    -o dist/mcp-hub-$${target%/*}-$${target#*/} ./cmd/mcp-hub || exit 1; \
	done
	epoch=$$(git log -1 --format=%ct) && man=$$(mktemp -d) && SOURCE_DATE_EPOCH=$$epoch go run ./cmd/slimctl man $$man && \
	  tar -C $$man --sort=name --mtime=@$$epoch --owner=0 --group=0 --numeric-owner --mode=u=rw,go=r -cf dist/slimctl-man.tar $$(ls $$man) && \
	  gzip -nf dist/slimctl-man.tar && rm -r $$man
