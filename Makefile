# The steps of .ci/run, each to be run alone. "make" is what a change needs before it is sent.

GO ?= go
STATICCHECK = $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Each nested module has dependencies that the core must not have. The proof has no goroutine that shares anything and much to
# do, and bench measures: each runs once, and the proof without the race detector.
MODULES = $(patsubst %/go.mod,%,$(shell find . -mindepth 2 -name go.mod | sort))

.PHONY: check ci fmt vet tidy staticcheck test plain cover modules demo

check: fmt vet tidy staticcheck test

ci: check plain cover modules

fmt:
	@files=$$(gofmt -l .); test -z "$$files" || { echo "gofmt would change:"; echo "$$files"; exit 1; }

vet:
	$(GO) vet ./...

tidy:
	$(GO) mod tidy -diff

staticcheck:
	$(STATICCHECK) ./...

test:
	$(GO) test -race -shuffle=on ./...

# A test that is green under one scheduler may fail under another. The race detector slows everything down and so hides what
# only a fast machine shows; with one thread a goroutine that does not wait keeps all others waiting.
plain:
	$(GO) test -shuffle=on ./...
	GOMAXPROCS=1 $(GO) test -shuffle=on ./...

# With miniredis alone: nothing but Go is found on this PATH, so the tests that want a redis-server are skipped.
cover:
	PATH=$$($(GO) env GOROOT)/bin CGO_ENABLED=0 LEASEHOLD_REQUIRE_REDIS= go test -cover .

modules:
	@set -e; export GOWORK=off; for dir in $(MODULES); do \
		echo "== $$dir"; cd $(CURDIR)/$$dir; \
		$(GO) mod tidy -diff; \
		$(GO) build -buildvcs=false -o /dev/null ./...; \
		$(GO) vet ./...; \
		$(STATICCHECK) ./...; \
		race=-race; test $$dir != ./proof || race=; \
		$(GO) test $$race -shuffle=on ./...; \
		case $$dir in ./proof | ./bench) continue ;; esac; \
		$(GO) test -shuffle=on ./...; \
		GOMAXPROCS=1 $(GO) test -shuffle=on ./...; \
	done

demo:
	$(GO) run ./cmd/leasehold demo
