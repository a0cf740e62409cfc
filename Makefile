# The steps of .ci/run, each to be run alone. "make" is what a change needs before it is sent; "make help" lists all.

GO ?= go
LINT = $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
VULN = $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0

# Each nested module has dependencies that the core must not have. The proof has no goroutine that shares anything and much to
# do, and bench measures: each runs once, and the proof without the race detector.
MODULES = $(patsubst %/go.mod,%,$(shell find . -mindepth 2 -name go.mod | sort))

# How many histories of the line "make sim" plays, how long its quorum's go on, and how long a fuzz target runs.
SIM_RUNS ?= 60
SIM_TIME ?= 10s
FUZZ_TIME ?= 30s

.PHONY: help check ci fmt vet tidy lint test plain cover modules sim mutants fuzz nightly proofs latest vuln release demo

check: fmt vet tidy lint test

ci: check plain sim modules release

help:
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

fmt: ## gofmt changes nothing
	@files=$$(gofmt -l .); test -z "$$files" || { echo "gofmt would change:"; echo "$$files"; exit 1; }

vet: ## go vet
	$(GO) vet ./...

tidy: ## go.mod and go.sum are as go mod tidy leaves them
	$(GO) mod tidy -diff

lint: ## golangci-lint, in every module
	@set -e; export GOWORK=off; for dir in . $(MODULES); do echo "== $$dir"; (cd $$dir && $(LINT) run ./...); done

test: ## the tests, with the race detector
	$(GO) test -race -shuffle=on ./...

# What runs in a program.
CORE := . $(addprefix ./internal/,backend clock fault fenced inflight keep line quorum quorum/nodescript quorum/proposal rediskey roundtrip script several short token)
empty :=
comma := ,

# A test that is green under one scheduler may fail under another. The race detector slows everything down and so hides what
# only a fast machine shows; with one thread a goroutine that does not wait keeps all others waiting.
plain: ## the tests without the race detector, and on one thread
	$(GO) test -shuffle=on ./...
	GOMAXPROCS=1 $(GO) test -shuffle=on $(CORE)

# With miniredis alone: nothing but Go is found on this PATH, so the tests that want a redis-server are skipped.
cover: ## how much the tests cover without a server
	@tmp=$$(mktemp); trap 'rm -f "$$tmp"' EXIT; PATH=$$($(GO) env GOROOT)/bin CGO_ENABLED=0 LEASEHOLD_REQUIRE_REDIS= \
		go test -coverprofile="$$tmp" -coverpkg=$(subst $(empty) $(empty),$(comma),$(CORE)) $(CORE) ./internal/sim && $(GO) tool cover -func="$$tmp" | tail -n 1

# Every run draws new histories and prints the seed of the first: LEASEHOLD_SIM_SEED plays one again.
sim: ## new histories of the simulations
	LEASEHOLD_SIM_RUNS=$(SIM_RUNS) $(GO) test -count=1 -v -run '^TestTheSimulation$$' ./internal/sim
	LEASEHOLD_SIM_TIME=$(SIM_TIME) $(GO) test -count=1 -v -run '^TestQuorumSimulation$$' ./internal/sim

mutants: ## every mutant of the scripts and of the clients, half an hour
	LEASEHOLD_SIM_MUTANTS=1 $(GO) test -count=1 -v -timeout 40m -run '^TestTheSimulationCatches' ./internal/sim

fuzz: ## every fuzz target for a while
	@set -e; grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z]*' . | while IFS=: read -r file func; do \
		name=$${func#func }; echo "== $$name"; \
		(cd $$(dirname $$file) && $(GO) test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZ_TIME) .) </dev/null; \
	done

# In an hour on two cores.
nightly: ## many histories, all mutants, servers that are killed, fuzzing: within an hour
	LEASEHOLD_SIM_RUNS=2500 $(GO) test -count=1 -v -timeout 20m -run '^TestTheSimulation$$' ./internal/sim
	LEASEHOLD_SIM_RUNS=150 LEASEHOLD_SIM_TIME=4m LEASEHOLD_KILL_TIME=1m $(GO) test -race -count=1 -v -timeout 20m \
		-run '^(TestTheSimulation|TestQuorumSimulation|TestQuorumSurvivesKilledServers)$$' ./internal/sim
	$(MAKE) mutants cover
	$(MAKE) fuzz FUZZ_TIME=2m

proofs: ## the models with large bounds, which takes some GB of memory
	cd proof && GOWORK=off LEASEHOLD_PROOF=all $(GO) test -count=1 -v -timeout 2h ./...

# What a user gets who takes the newest of everything. Nothing of the checkout changes. With -u, Go asks the proxy for each package of
# the core in a nested module, though it is replaced; there the direct dependencies bring the newer indirect ones.
latest: ## the tests with the latest dependencies
	@set -e; export GOWORK=off; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; for dir in . $(MODULES); do \
		echo "== $$dir"; cd $(CURDIR)/$$dir; cp go.mod $$tmp/go.mod; cp go.sum $$tmp/go.sum 2>/dev/null || true; \
		$(GO) get -modfile=$$tmp/go.mod $$($(GO) list -m -f '{{if not (or .Main .Replace .Indirect)}}{{.Path}}@upgrade{{end}}' all); \
		if test $$dir = .; then $(GO) get -modfile=$$tmp/go.mod -u -t ./...; fi; \
		$(GO) test -modfile=$$tmp/go.mod -shuffle=on ./...; \
		rm -f $$tmp/go.mod $$tmp/go.sum; \
	done

vuln: ## govulncheck in every module; it fetches the list of known faults
	@set -e; export GOWORK=off; for dir in . $(MODULES); do echo "== $$dir"; (cd $$dir && $(VULN) ./...); done

release: ## what can be checked of a release before it is tagged
	.ci/release

modules: ## everything of the nested modules
	@set -e; export GOWORK=off; for dir in $(MODULES); do \
		echo "== $$dir"; cd $(CURDIR)/$$dir; \
		$(GO) mod tidy -diff; \
		$(GO) build -buildvcs=false -o /dev/null ./...; \
		$(GO) vet ./...; \
		race=-race; test $$dir != ./proof || race=; \
		$(GO) test $$race -shuffle=on ./...; \
		case $$dir in ./proof | ./bench) continue ;; esac; \
		$(GO) test -shuffle=on ./...; \
	done

demo: ## the demo of cmd/leasehold
	$(GO) run ./cmd/leasehold demo
