# finalizerd: `make help` lists the targets.

SHELL := bash
.DELETE_ON_ERROR:
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules --no-print-directory

BIN := $(CURDIR)/.build/bin
MODULES := . gen/finalizer client deploy/local deploy/argo
# deploy/local is left out: vet and staticcheck analyse every dependency, and its
# are all of Kubernetes (ten minutes more than the rest together), and so is
# deploy/argo, which has Argo's.
LINTED := . client
TOOLS := buf protoc-gen-go protoc-gen-go-grpc protoc-gen-grpc-gateway protoc-gen-openapiv2 grpcurl staticcheck
# What `make bench` measures; fewer pods for a quick look.
BENCH_PODS ?= 2000
BENCH_ORPHANS ?= 20000
# Which of the stories `make e2e-argo` tells: the tests' names, as of go test -run.
ARGO_RUN ?= .
# The branch that `buf breaking` compares with.
BASE_BRANCH ?= main
export KUBECONFIG ?=

# Prints one line each hundred packages, and anything that is no package name.
PROGRESS = awk '/^[a-zA-Z0-9._\/-]+$$/ {n++; if (n % 100 == 0) {printf "  ... %d packages compiled\n", n > "/dev/stderr"}; next} {print > "/dev/stderr"}'

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: build-finalizerd ## Serve: the cluster of KUBECONFIG if it is set, else a local one with a demo workflow
	@if [[ -n "$$KUBECONFIG" ]]; then exec "$(BIN)/finalizerd" serve; fi; \
	$(MAKE) build-local; \
	unset KUBECONFIG; exec "$(BIN)/local" run --finalizerd "$(BIN)/finalizerd"

.PHONY: demo
demo: build-finalizerd build-local ## Play the story by itself, on a local control plane, and exit
	@unset KUBECONFIG; "$(BIN)/local" demo --finalizerd "$(BIN)/finalizerd"

.PHONY: test
test: test-unit test-e2e ## Unit tests with the race detector, then the end-to-end tests on a real API server

.PHONY: test-unit
test-unit: ## Unit tests of every module
	go test -race ./server/... ./cmd/...
	cd client && go test -race ./...
	cd deploy/local && go test -vet=off ./...

.PHONY: test-e2e
test-e2e: build-local $(BIN)/grpcurl ## End-to-end tests on a real kube-apiserver and etcd
	@unset KUBECONFIG; \
	FINALIZERD_E2E_CONTROL_PLANE="$(BIN)/local" FINALIZERD_E2E_GRPCURL="$(BIN)/grpcurl" \
		go test -race -count=1 -timeout 30m ./deploy/e2e/...

.PHONY: e2e-argo
e2e-argo: build-finalizerd build-local build-argo ## Real Argo Workflows: alone, with finalizerd, and with the sidecar (25 minutes)
	@unset KUBECONFIG; cd deploy/argo && go test -vet=off ./internal/... && FINALIZERD_E2E_BIN="$(BIN)" \
		go test -vet=off -count=1 -v -timeout 45m -run '$(ARGO_RUN)' .

.PHONY: build-argo
build-argo:
	@echo "building Argo's controller and server from its Go module (about six minutes the first time)" >&2
	@cd deploy/argo && go build -v -o "$(BIN)/workflow-controller" github.com/argoproj/argo-workflows/v4/cmd/workflow-controller 2>&1 | $(PROGRESS)
	@cd deploy/argo && go build -v -o "$(BIN)/argo-server" ./cmd/argo-server 2>&1 | $(PROGRESS)

.PHONY: bench
bench: build-finalizerd build-local ## Compare with a bare client-go loop: JSON lines and a table
	@unset KUBECONFIG; "$(BIN)/local" bench --finalizerd "$(BIN)/finalizerd" --pods $(BENCH_PODS) --orphans $(BENCH_ORPHANS)

.PHONY: build
build: build-finalizerd build-local ## Build every binary into .build/bin

.PHONY: build-finalizerd
build-finalizerd:
	@echo "building finalizerd (about three minutes the first time, seconds later)" >&2
	@go build -v -o "$(BIN)/finalizerd" ./cmd/finalizerd 2>&1 | $(PROGRESS)

.PHONY: build-local
build-local:
	@echo "building the local control plane from Kubernetes' own modules (about twelve minutes and 2,200 packages the first time, seconds later)" >&2
	@cd deploy/local && go build -v -o "$(BIN)/local" . 2>&1 | $(PROGRESS)

.PHONY: generate
generate: $(addprefix $(BIN)/,$(TOOLS)) ## Regenerate gen/ from proto/
	PATH="$(BIN):$$PATH" buf generate

.PHONY: check-generate
check-generate: generate ## Fail if gen/ is not what proto/ generates
	@git diff --exit-code --stat -- gen && test -z "$$(git ls-files --others --exclude-standard gen)" || \
		{ echo "gen/ is stale: run 'make generate' and commit the result" >&2; exit 1; }

.PHONY: check-tidy
check-tidy: ## Fail if a go.mod is not tidy
	@for m in $(MODULES) .ci/tools; do (cd $$m && go mod tidy -diff) || { echo "run 'go mod tidy' in $$m" >&2; exit 1; }; done

.PHONY: lint
lint: $(addprefix $(BIN)/,$(TOOLS)) ## gofmt, vet, staticcheck, buf lint and buf breaking
	@files=$$(git ls-files '*.go' | grep -v '^gen/' | xargs gofmt -l); \
		test -z "$$files" || { echo "gofmt these: $$files" >&2; exit 1; }
	@for m in $(LINTED); do echo "vet and staticcheck: $$m"; (cd $$m && go vet ./... && "$(BIN)/staticcheck" ./...); done
	"$(BIN)/buf" lint
	@base="$(BASE_BRANCH)"; \
	if git rev-parse -q --verify "origin/$(BASE_BRANCH)^{commit}" >/dev/null; then base="origin/$(BASE_BRANCH)"; fi; \
	if [[ "$$(git rev-parse "$$base")" == "$$(git rev-parse HEAD)" ]]; then base="HEAD^"; fi; \
	if git cat-file -e "$$base:buf.yaml" 2>/dev/null; then \
		"$(BIN)/buf" breaking --against ".git#ref=$$base"; \
	else echo "buf breaking: no earlier API on $$base to compare with"; fi

.PHONY: tools
tools: $(addprefix $(BIN)/,$(TOOLS)) ## Build the pinned tools into .build/bin

$(addprefix $(BIN)/,$(TOOLS)) &: .ci/tools/go.mod .ci/tools/go.sum
	@echo "building the pinned tools (about four minutes the first time)" >&2
	@cd .ci/tools && GOBIN="$(BIN)" go install -v tool 2>&1 | $(PROGRESS)
	@touch $(addprefix "$(BIN)"/,$(TOOLS))

.PHONY: image
image: ## Build the container image finalizerd:dev (needs docker)
	docker build -f deploy/Dockerfile -t finalizerd:dev .

.PHONY: clean
clean: ## Remove what was built
	rm -rf .build
