.PHONY: build test lint generate bench release

build: ## ./slimctl
	go build -o slimctl ./cmd/slimctl

test: ## all tests, with what they need
	scripts/test

lint: ## golangci-lint, in the version that .golangci.yml was written for
	go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0 run

generate: ## profiles/schema.json
	go generate ./build/profile

bench: ## embedded engine against buildkitd; see bench/README.md
	bash bench/run

release: ## dist/slimctl-OS-ARCH, with browser-shell for both architectures inside
	for arch in amd64 arm64; do \
	  CGO_ENABLED=0 GOOS=linux GOARCH=$$arch go build -trimpath -buildvcs=false -ldflags '-s -w -buildid=' \
	    -o build/overlays/bin/browser-shell-linux-$$arch ./cmd/browser-shell || exit 1; \
	done
	for target in linux/amd64 linux/arm64 darwin/arm64; do \
	  CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/} go build -tags embedserver -trimpath -ldflags '-s -w' \
	    -o dist/slimctl-$${target%/*}-$${target#*/} ./cmd/slimctl || exit 1; \
	done
