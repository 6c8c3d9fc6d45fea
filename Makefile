# cbrepl. `make demo` and `make test` are the two to begin with; both install
# PostgreSQL from the distribution when no server binaries are found, and say so.

GO       ?= go
GOFLAGS  ?=
LINT     := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
FUZZTIME ?= 20s
# Extra arguments: make demo DEMO="--seconds 60 --keep"
DEMO     ?=
BENCH    ?=
# make matrix VERSIONS="14 /opt/pg16/bin 18" PACKAGES=./lab,./segment
VERSIONS ?= 14 15 16 17 18
PACKAGES ?= ./...
# make soak SOAK=7 repeats the seed 7
SOAK     ?= random

.DEFAULT_GOAL := build
.PHONY: build test race soak matrix lint bench demo fmt tidy fuzz postgres clean help

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' $(MAKEFILE_LIST)

build: ## make bin/cbrepl
	$(GO) build $(GOFLAGS) -o bin/cbrepl ./cmd/cbrepl

postgres: ## find PostgreSQL server binaries or install them
	@scripts/ensure-postgres.sh

test: postgres ## run every test, on real servers
	$(GO) test $(GOFLAGS) -timeout 40m ./...

race: postgres ## run every test under the race detector
	$(GO) test $(GOFLAGS) -race -timeout 30m ./...

soak: postgres ## run every random test for long, from seeds that are drawn and printed
	CBREPL_SOAK=$(SOAK) $(GO) test $(GOFLAGS) -count=1 -timeout 12h ./...

matrix: ## run every test on several versions of PostgreSQL, installing those that are missing
	@dirs=$$(for v in $(VERSIONS); do scripts/postgres-version.sh $$v || exit 1; done) && \
	$(GO) run ./integration/matrix -packages $(PACKAGES) $$dirs

lint: ## vet, and the pinned linter
	$(GO) vet ./...
	$(GO) run $(LINT) run ./...

bench: postgres build ## cbrepl beside the source's own limits, on the same rows
	$(GO) run ./integration/bench $(BENCH)
	@if [ -n "$$CBREPL_TEST_CLUSTER_DSN" ]; then $(GO) test -run '^$$' -bench Ratios -benchtime 1x ./apply/cloudberry; \
	else echo "apply/cloudberry: not measured, CBREPL_TEST_CLUSTER_DSN is not set"; fi

demo: postgres build ## replicate a live 3-segment source into a 2-shard target and prove it
	bin/cbrepl demo $(DEMO)

fmt: ## format the code
	$(GO) run $(LINT) fmt ./...

tidy: ## tidy go.mod and go.sum
	$(GO) mod tidy

fuzz: ## fuzz every target for FUZZTIME each
	FUZZTIME=$(FUZZTIME) scripts/fuzz.sh

clean: ## remove what build made
	rm -rf bin
