# Everything here needs Go alone, except lint, check, aws-local and sam-build: they install pinned tools into .tools, and
# -race wants a C compiler.

FUZZTIME ?= 30s
BENCH    ?= .

# The test runner lists skipped tests with their reasons at the end and keeps go test's verdict.
TEST := go run .ci/test.go

.DEFAULT_GOAL := help
.PHONY: help build run test lint vet check fuzz bench aws-local aws-local-stop sam-build clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build onceload into .bin/
	CGO_ENABLED=0 go build -trimpath -o .bin/onceload ./pkg/cmd/onceload

run: build ## Build, then run the demo: a misbehaving API, a kill, a resume, a reload
	.bin/onceload demo

test: ## Run all tests; say which are skipped and why
	CGO_ENABLED=0 $(TEST) ./...

lint: ## Run golangci-lint (pinned in .ci/tools)
	@.ci/tools golangci-lint
	$(or $(ONCELOAD_TOOLS),.tools)/bin/golangci-lint run

vet:
	go vet ./...
	@for file in .ci/*.go; do go vet $$file || exit 1; done

check: ## What must hold before a commit: gofmt, vet, lint, tests with the race detector
	@files=$$(gofmt -l $(wildcard functions pkg .ci)); if [ -n "$$files" ]; then echo "gofmt -w $$files"; exit 1; fi
	@$(MAKE) --no-print-directory vet lint
	$(TEST) -race -shuffle=on ./...

fuzz: ## Fuzz each target for FUZZTIME (30s)
	go vet ./...
	@for package in $$(go list ./...); do \
	  for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz'); do \
	    echo "$$package $$target"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package || exit 1; \
	  done; \
	done

bench: ## Run the benchmarks named by BENCH (all)
	go test -run '^$$' -bench '$(BENCH)' -benchmem ./...

aws-local: ## Start S3 and DynamoDB servers with the template's buckets and tables; print the environment to use them
	@.ci/aws-local start

aws-local-stop: ## Stop these servers; their data in .onceload/aws-local stays
	@.ci/aws-local stop

sam-build: ## Build the functions for a deploy, and check what was built
	@.ci/tools sam
	SAM_CLI_TELEMETRY=0 $(or $(ONCELOAD_TOOLS),.tools)/bin/sam build --build-in-source
	go run .ci/artifacts.go

# SAM asks for these (BuildMethod makefile), with ARTIFACTS_DIR set.
FUNCTIONS := build-ExtractFunction build-TransformFunction build-GateFunction build-LoadFunction build-SettleFunction
.PHONY: $(FUNCTIONS)
$(FUNCTIONS): build-%Function:
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 go build -tags lambda.norpc -trimpath -buildvcs=false -ldflags='-s -w' \
	  -o $(ARTIFACTS_DIR)/bootstrap ./functions/$$(echo $* | tr A-Z a-z)

clean: ## Remove what was built; .tools and your data in .onceload stay
	rm -rf .bin .aws-sam
