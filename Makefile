# `make` alone lists the targets.

GO          ?= go
GOTESTFLAGS ?=
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
IMAGE       ?= duestream:local
PROMTOOL    ?= promtool
PROMETHEUS  ?= prometheus
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Variables: GOTESTFLAGS (make test GOTESTFLAGS='-race -run TestX'), PACKAGES, VERSION, IMAGE, BUILDER_IMAGE."

# Programs without a symbol table for debuggers are linked faster; stack traces do not need it.
QUICKLY_BUILT := -vet=off -ldflags=-w

# The packages of the protocol and of the engine, without those that start programs or many servers. Their tests mostly wait, so
# four packages run at once; -short leaves out tests that wait for many seconds.
QUICK := ./lua ./internal/... ./scheduler/... ./stream/... ./bridge ./bridge/admin ./integration/layout

.PHONY: quick
quick: ## run the tests of the protocol and the engine, on one server
	DUESTREAM_TEST_ONLY=shared $(GO) test -short -p 4 -timeout 10m $(QUICKLY_BUILT) $(GOTESTFLAGS) $(QUICK)

# Packages that `make test` leaves out. `make proof` tests the campaign, crash points, clients in other languages,
# broken programs for the conformance kit, measurements, and the dashboard in a browser.
LONG := /(integration/(campaign|crashpoint|languages)|bridge/dashboard/browser|cmd/duestream/(conformance|bench))$$
PACKAGES ?= $(shell $(GO) list ./... | grep -Ev '$(LONG)')

# Most tests wait, so three packages run at once; with more, programs that keep times are late on two cores. `make lint` vets.
.PHONY: test
test: ## run the tests of all guarantees, on the servers that are there; finds or installs a Redis by itself
	$(GO) test -p 3 -timeout 40m $(QUICKLY_BUILT) $(GOTESTFLAGS) $(PACKAGES)

.PHONY: proof
proof: ## everything that a change must pass: what CI runs
	.ci/run

.PHONY: browser
browser: ## test the dashboard in Chromium, with axe-core, and print how heavy its pages are; SCREENSHOTS=dir keeps pictures
	cd bridge/dashboard/browser && $(if $(SCREENSHOTS),DUESTREAM_TEST_SCREENSHOTS=$(abspath $(SCREENSHOTS))) \
		$(GO) test -count=1 -timeout 40m $(QUICKLY_BUILT) $(GOTESTFLAGS)

PICTURES := docs/guides/dashboard-pictures

.PHONY: pictures
pictures: ## take the pictures of the dashboard for the documents
	DUESTREAM_TEST_PICTURES=$(abspath $(PICTURES)) $(GO) test -count=1 -timeout 20m ./bridge/dashboard/browser -run TestPicturesOfAShop

.PHONY: race
race: ## run all tests with the race detector
	$(MAKE) test PACKAGES=./... GOTESTFLAGS="-race $(GOTESTFLAGS)"

.PHONY: clients-bench
clients-bench: ## measure the Python and Node.js packages beside rq (Debian: python3-rq) and bullmq, and print a table
	$(GO) build -o bin/duestream ./cmd/duestream
	npm install --prefix clients/node --no-audit --no-fund && npm run --prefix clients/node build
	npm install --prefix clients/bench --no-audit --no-fund
	python3 clients/bench/bench.py --bridge bin/duestream

.PHONY: bench
bench: ## run the benchmarks, and nothing else, one package at a time
	$(GO) test -p 1 -timeout 60m -run '^$$' -bench . -benchmem $(GOTESTFLAGS) ./...

# DURATION is that of the load; the quiescence and the audit come on top.
DURATION ?= 10m
CLUSTER  ?=
RELEASES ?=
LANGUAGES ?=
SERVER   ?=

.PHONY: campaign
campaign: ## long fault campaign; DURATION=10m, SEED=n replays one, OUT=dir keeps table and timeline, CLUSTER=1 on a cluster, RELEASES=1 beside the release before, LANGUAGES=1 with the packages in Python and Node.js, RATE=n messages a second, SERVER=redis:8.6 on a container of that image (not with CLUSTER=1)
	DUESTREAM_CAMPAIGN_DURATION=$(DURATION) DUESTREAM_CAMPAIGN_RATE=$(RATE) DUESTREAM_TEST_SEED=$(SEED) DUESTREAM_CAMPAIGN_OUT=$(if $(OUT),$(abspath $(OUT))) DUESTREAM_TEST_OWN_IMAGE=$(SERVER) \
		$(GO) test ./integration/$(if $(LANGUAGES),languages,campaign) -count=1 -timeout 0 -v \
		-run '^TestCampaign$(if $(CLUSTER),OnACluster)$(if $(RELEASES),OfTwoReleases)$(if $(LANGUAGES),OfLanguages)$$' $(GOTESTFLAGS)

.PHONY: generate
generate: ## write the texts of the scripts in lua/generated anew, after a change of a script
	$(GO) generate ./lua

.PHONY: rules
rules: ## check and test the alert rules in deploy/prometheus; needs promtool (Debian package prometheus), or PROMTOOL=path
	@command -v $(PROMTOOL) >/dev/null || { echo "no $(PROMTOOL): apt-get install prometheus, or PROMTOOL=path"; exit 1; }
	$(PROMTOOL) check rules deploy/prometheus/rules.yml
	$(PROMTOOL) test rules deploy/prometheus/rules_test.yml

# The checks are a module of their own, which pins helm and the types of Kubernetes.
.PHONY: helm-check
helm-check: ## lint and render the Helm chart, and check its objects; the first time, building helm takes minutes
	cd deploy/helm/check && $(GO) vet ./... && $(GO) test -count=1 $(GOTESTFLAGS) ./...

.PHONY: helm-files
helm-files: ## copy the alert rules and the board into the Helm chart, after a change of either
	cp deploy/prometheus/rules.yml deploy/helm/duestream/files/rules.yml
	cp deploy/grafana/duestream.json deploy/helm/duestream/files/board.json

SITE      ?= dist/site
SITE_BASE ?= /
SITE_URL  ?=
SITE_DEMO ?= dist/site-demo

# npm writes this file when it has installed the packages.
SITE_PACKAGES := deploy/site/node_modules/.package-lock.json

$(SITE_PACKAGES): deploy/site/package-lock.json
	npm ci --prefix deploy/site --no-audit --no-fund --loglevel=error
	@touch $@

.PHONY: site
site: $(SITE_PACKAGES) ## build the site of this version from docs in SITE (dist/site); SITE_BASE=/path/, SITE_URL=https://host; needs npm
	@SITE_DEMO=$(wildcard $(abspath $(SITE_DEMO))) SITE=$(abspath $(SITE)) SITE_BASE=$(SITE_BASE) SITE_URL=$(SITE_URL) VERSION="$(VERSION)" node deploy/site/build.js

.PHONY: site-demo
site-demo: ## record the dashboard of a shop in SITE_DEMO (dist/site-demo), which `make site` includes; needs Redis and Chromium
	DUESTREAM_TEST_DEMO=$(abspath $(SITE_DEMO)) $(GO) test -count=1 -timeout 20m $(QUICKLY_BUILT) \
		./bridge/dashboard/browser -run '^TestDemoOfAShop$$'

.PHONY: site-check
site-check: site ## build the site, follow all its links, and try its search
	$(GO) run ./deploy/site/check -base $(SITE_BASE) $(SITE)
	node deploy/site/search-check.js $(SITE)/$(VERSION) $(SITE_BASE)$(VERSION)/

.PHONY: reference
reference: ## write docs/reference anew (commands, variables, settings, conformance cases), and the settings in openapi.json
	$(GO) generate ./cmd/duestream/internal/command ./cmd/duestream/conformance ./bridge/gateway

.PHONY: staged-alerts
staged-alerts: ## have Prometheus watch staged outages, for minutes; OUT=dir keeps what it saw, PROMETHEUS=path is the program
	DUESTREAM_STAGED_ALERTS=$(if $(OUT),$(abspath $(OUT)),-) DUESTREAM_PROMETHEUS=$(PROMETHEUS) \
		$(GO) test ./integration/alerts -count=1 -timeout 30m -v -run '^TestStagedOutages$$' $(GOTESTFLAGS)

.PHONY: mutants
mutants: ## change the scripts by rule, and see that the tests notice; N=20 drawn at random, SEED=n draws the same, ONLY=word picks some
	$(GO) run ./integration/mutants $(if $(N),-n $(N)) $(if $(SEED),-seed $(SEED)) $(if $(ONLY),-only "$(ONLY)")

.PHONY: conformance-mutants
conformance-mutants: ## have the conformance kit judge every broken program of its table, not only the day's sample
	DUESTREAM_TEST_MUTATIONS=table $(GO) test ./cmd/duestream/conformance -count=1 -v -run '^TestBroken' $(GOTESTFLAGS)

# One after the other, each on one worker: the targets that need a server share it. What they find is written to testdata/fuzz.
FUZZTIME ?= 30s

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (30s)
	@for package in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz'); do \
	    echo "$$package $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5s -parallel 1 $(GOTESTFLAGS) $$package || exit 1; \
	  done; \
	done

.PHONY: lint
lint: fmt-check vet staticcheck ## gofmt, go vet, staticcheck

.PHONY: fmt-check
fmt-check: ## fail when gofmt would change a file
	@unformatted=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .) || exit 1; \
	if [ -n "$$unformatted" ]; then echo "gofmt would change:"; echo "$$unformatted"; exit 1; fi

.PHONY: vet
vet: ## go vet
	$(GO) vet ./...

# Run by version and not required by go.mod, so that its dependencies do not become ours.
.PHONY: staticcheck
staticcheck: ## staticcheck, at the version pinned here
	$(GO) run $(STATICCHECK) ./...

.PHONY: tidy-check
tidy-check: ## fail when go.mod or go.sum is not tidy
	$(GO) mod tidy -diff

.PHONY: build
build: ## static binary in bin/duestream
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION)" -o bin/duestream ./cmd/duestream

# The same commit gives the same files. Uncommitted changes are built, too, and VERSION then ends with "dirty".
.PHONY: dist
dist: ## build a release in dist/, for amd64 and arm64: archives, Debian packages, images, bills of materials, checksums
	cd deploy/dist && $(GO) run . -version "$(VERSION)" -epoch "$$(git log -1 --format=%ct)" -source ../.. -out ../../dist
	cat dist/SHA256SUMS

.PHONY: dist-check
dist-check: ## build a release twice, compare the two, and look into the packages; the first time this takes minutes
	cd deploy/dist && $(GO) vet ./... && $(GO) test -count=1 -timeout 60m $(GOTESTFLAGS) ./...

.PHONY: man
man: ## manual pages in bin/man: one of everything, and one per command
	$(GO) run -ldflags "-X main.version=$(VERSION)" ./cmd/duestream man --dir bin/man

.PHONY: image
image: ## container image duestream:local; IMAGE and BUILDER_IMAGE replace its name and the golang image
	docker build --build-arg VERSION="$(VERSION)" $(if $(BUILDER_IMAGE),--build-arg BUILDER_IMAGE="$(BUILDER_IMAGE)") -t "$(IMAGE)" .
