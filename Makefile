# Everything a developer types. Packages of Debian that a target needs are
# installed by name when they are missing; only demo and build install nothing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO ?= go
CLANG := 19
FUZZTIME ?= 60s

# Packages whose tests work on the kernel: they need root, and run inside other
# kernels too.
KERNEL_TESTS := ./internal/testnet ./loader ./userspace ./tests/netns

# Other firewalls that ours is measured beside.
PEERS := nftables iptables xdp-tools

# What each kind of work needs from Debian, besides Go and make.
GENERATE_DEPS := clang-$(CLANG) llvm-$(CLANG) libbpf-dev
CHECK_DEPS := $(GENERATE_DEPS) clang-format-$(CLANG) git
TEST_DEPS := gcc libc6-dev libnetfilter-queue-dev $(PEERS)
KERNELS_DEPS := qemu-system-x86 xz-utils

GO_FILES = $(shell git ls-files -co --exclude-standard '*.go')
C_FILES = $(shell git ls-files -co --exclude-standard 'bpf/*.c' 'bpf/*.h')

.PHONY: all build generate test test-plain test-corpus test-kernels race soak fuzz lint fmt check demo bench-pktbuf bench-fastpath bench-queue clean deps help

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' Makefile

all: build lint test ## build, lint and test

build: ## build bin/hybridfw
	$(GO) build -trimpath -o bin/hybridfw ./cmd/hybridfw

deps: ## install all that any target needs from Debian
	@.ci/deps $(sort $(CHECK_DEPS) $(TEST_DEPS) $(KERNELS_DEPS))

generate: ## compile bpf/ into gen/
	@.ci/deps $(GENERATE_DEPS)
	$(GO) generate ./...

test: ## run all tests; as root, or those that need root are skipped
	@.ci/deps $(TEST_DEPS)
	@.ci/gotest -count=1 ./...

test-plain: ## run the tests that need no root
	@.ci/gotest $$($(GO) list ./... | grep -vxF "$$($(GO) list -e $(KERNEL_TESTS))")

test-corpus: ## hold the names found in published captures against a dissector's
	@[ -n "$${HYBRIDFW_CORPUS:-}" ] || [ -d ../shared/corpus ] || { echo "no captures: set HYBRIDFW_CORPUS" >&2; exit 1; }
	$(GO) test -count=1 -v -run '^TestCorpus' ./cmd/hybridfw ./userspace

test-kernels: ## run the tests that need root inside Debian's kernels 6.1 and 6.12
	@.ci/deps $(KERNELS_DEPS)
	$(GO) run ./internal/kernels $(KERNELS_FLAGS) $(KERNEL_TESTS)

race: ## run all tests under the race detector
	@.ci/deps $(TEST_DEPS)
	@CGO_ENABLED=1 .ci/gotest -race -short -count=1 ./...

soak: ## compare programs and policies until stopped; HOURS=n, PAIRS=n, SEED=n
	@[ "$$(id -u)" = 0 ] || { echo "the soak test makes network namespaces: run it as root" >&2; exit 1; }
	$(GO) test -tags soak -run '^TestSoak$$' -timeout 0 -count=1 -v ./loader \
		-hours $(or $(HOURS),0) -pairs $(or $(PAIRS),0) -seed $(or $(SEED),0)

fuzz: ## run each fuzz target for FUZZTIME
	@for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

lint: ## look for mistakes and for what the house rules forbid
	@unformatted=$$(gofmt -l $(GO_FILES)); \
		[ -z "$$unformatted" ] || { echo "not formatted, run make fmt: $$unformatted" >&2; exit 1; }
	$(GO) vet ./...
	GOARCH=386 $(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) test ./internal/house

fmt: ## format Go and C
	gofmt -w $(GO_FILES)
	@.ci/deps clang-format-$(CLANG)
	clang-format-$(CLANG) -i $(C_FILES)

check: lint ## lint, and see that nothing generated or formatted differs
	@.ci/deps $(CHECK_DEPS)
	clang-format-$(CLANG) --dry-run -Werror $(C_FILES)
	$(GO) mod tidy -diff
	$(GO) generate ./...
	git diff --exit-code --stat gen/ docs/ || { echo "gen/ or docs/ is not what make generate makes: commit that" >&2; exit 1; }

demo: build ## show real packets taking both paths; needs root
	@[ "$$(id -u)" = 0 ] || { echo "the demo makes network namespaces: run it as root" >&2; exit 1; }
	bin/hybridfw demo

bench-pktbuf: ## compare pktbuf with the C library
	@.ci/deps $(TEST_DEPS)
	$(GO) test ./bench/pktbuf -run '^$$' -bench '^BenchmarkCompare$$' -benchtime 1x

bench-fastpath: ## measure what the kernel half costs, beside others; as root; OUT=docs writes its page
	@[ "$$(id -u)" = 0 ] || { echo "the benchmark makes network namespaces: run it as root" >&2; exit 1; }
	@.ci/deps $(PEERS)
	$(GO) test ./loader -run '^$$' -bench '^BenchmarkCost$$' -benchtime 1x
	$(GO) test ./tests/netns -run '^$$' -bench '^BenchmarkSendfile$$' -benchtime 1x
	$(GO) test ./bench/fastpath -run '^$$' -bench '^BenchmarkVeth$$' -benchtime 1x -timeout 1h $(if $(OUT),-out $(abspath $(OUT)))

bench-queue: ## measure what a queued packet costs, beside other readers; as root
	@[ "$$(id -u)" = 0 ] || { echo "the benchmark makes network namespaces: run it as root" >&2; exit 1; }
	@.ci/deps $(TEST_DEPS)
	$(GO) test ./bench/queue -run '^$$' -bench '^BenchmarkQueue$$' -benchtime 1x -timeout 20m

clean: ## remove what was built and downloaded
	rm -rf bin .cache
