# Rodimus Server. `make run` serves the demo model, `make test` runs every test; both install what is missing.
# `make help` lists the targets that are meant to be called: those with a comment behind them.
# BUILD and SAN are how the sanitizer targets build the same tree beside the plain one.
MAKEFLAGS += --no-builtin-rules

BUILD   ?= build
SAN     ?=
CC      ?= gcc
NVCC    ?= $(shell command -v nvcc 2>/dev/null)
PORT    ?= 8080
JOBS    ?= $(shell nproc)
COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

PKGS    := libmicrohttpd jansson libuv libpcre2-8 libutf8proc libxxhash gnutls libcurl
WARN    := -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror
# _GNU_SOURCE: C11 plus POSIX and Linux (epoll options, sched_getaffinity); no compiler extensions but where a file says so.
CPPFLAGS = -D_GNU_SOURCE -DROD_VERSION='"0.1.0"' $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
OPT      = -O3 -g
CFLAGS   = -std=c11 $(OPT) -fno-math-errno -ffp-contract=off -fvisibility=hidden $(WARN) $(SAN)
# Bound at the start, so that the table of addresses is read-only from then on.
# A program loads the libraries that it uses alone.
LDFLAGS  = -pthread -rdynamic -Wl,-z,relro,-z,now,--as-needed $(SAN)
LDLIBS   = $(shell pkg-config --libs $(PKGS) 2>/dev/null) -ldl -lm -pthread

CUDA_C     := $(wildcard engine/backend/cuda/*.c)
# cuda_lt.c needs no CUDA, only what it loads does.
ENGINE_SRC := $(filter-out $(filter-out %/cuda_lt.c,$(CUDA_C)),$(wildcard engine/*.c engine/*/*.c engine/*/*/*.c)) $(filter-out kernels/cpu/cpu_simd.c kernels/cpu/cpu_window.c kernels/cpu/cpu_quant.c,$(wildcard kernels/*.c kernels/cpu/*.c))
SERVER_SRC := $(filter-out server/main.c,$(wildcard server/*.c server/*/*.c server/*/*/*.c))
ENGINE_OBJ := $(ENGINE_SRC:%.c=$(BUILD)/%.o)
SERVER_OBJ := $(SERVER_SRC:%.c=$(BUILD)/%.o) $(BUILD)/openapi_json.o $(BUILD)/page.o
TEST_SRC   := $(wildcard tests/unit/*/test_*.c tests/backend/test_*.c tests/gpu/test_*.c)
TEST_BIN   := $(TEST_SRC:%.c=$(BUILD)/%)
FUZZ_SRC   := $(wildcard tests/fuzz/fuzz_*.c)
API_BIN    := $(BUILD)/tests/api/protocol/schema_reads $(BUILD)/tests/api/protocol/tokenizer_ids $(BUILD)/tests/bench/ablate_steps
FUZZ_BIN   := $(FUZZ_SRC:%.c=$(BUILD)/%)
FUZZ_SAN   := -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -fsanitize-coverage=trace-pc

# kernels/cpu/cpu_simd.c, cpu_window.c and cpu_quant.c are compiled once per instruction set; kernels/cpu/cpu.c chooses at run time.
ifneq ($(filter x86_64,$(shell uname -m)),)
SIMD_ISA := base avx2 avx512
QUANT_ISA := $(SIMD_ISA) avxvnni avx512vnni
else
SIMD_ISA := base
QUANT_ISA := base
endif
SIMD_FLAGS_base   :=
# From GCC 13 on its tuning leaves some sums unfused and others not, of the same text; a row's bits may not depend on that.
FUSED := --param=avoid-fma-max-bits=0
SIMD_FLAGS_avx2   := -mavx2 -mfma -mf16c $(FUSED)
SIMD_FLAGS_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c -mprefer-vector-width=512 $(FUSED)
SIMD_FLAGS_avxvnni := $(SIMD_FLAGS_avx2) -mavxvnni
SIMD_FLAGS_avx512vnni := $(SIMD_FLAGS_avx512) -mavx512vnni
SIMD_OBJ := $(SIMD_ISA:%=$(BUILD)/kernels/cpu/cpu_simd_%.o) $(SIMD_ISA:%=$(BUILD)/kernels/cpu/cpu_window_%.o) $(QUANT_ISA:%=$(BUILD)/kernels/cpu/cpu_quant_%.o)
ENGINE_OBJ += $(SIMD_OBJ)

# A GPU of this machine (WSL's, too), or CUDA=1: whether `make run` builds for GPUs before it serves.
GPU     := $(or $(filter 1,$(CUDA)),$(wildcard /dev/nvidiactl /dev/dxg))
CUDA_SO := $(if $(and $(NVCC),$(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu)),$(BUILD)/rodimus_cuda.so)

# One short line a file; make V=1 prints the whole commands.
Q   := $(if $(V),,@)
say  = $(if $(V),,@printf '  %-5s %s\n' '$(1)' '$(2)')

all: $(BUILD)/rodimus $(CUDA_SO) # build/rodimus, and build/rodimus_cuda.so where nvcc is; the default

$(BUILD)/rodimus: $(BUILD)/server/main.o $(BUILD)/libserver.a $(BUILD)/librodimus.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/librodimus.a: $(ENGINE_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@; ar rcs $@ $^
$(BUILD)/libserver.a: $(SERVER_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@; ar rcs $@ $^

# Objects depend on the Makefile, so that a changed flag rebuilds them.
$(BUILD)/%.o: %.c Makefile | have-headers
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -I. -MMD -MP -c -o $@ $<

isa = $(lastword $(subst _, ,$(basename $(@F))))
$(SIMD_ISA:%=$(BUILD)/kernels/cpu/cpu_simd_%.o): kernels/cpu/cpu_simd.c Makefile
$(SIMD_ISA:%=$(BUILD)/kernels/cpu/cpu_window_%.o): kernels/cpu/cpu_window.c Makefile
$(QUANT_ISA:%=$(BUILD)/kernels/cpu/cpu_quant_%.o): kernels/cpu/cpu_quant.c Makefile
$(SIMD_OBJ): | have-headers
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -I. $(SIMD_FLAGS_$(isa)) -Wno-psabi -DISA=$(isa) -MMD -MP -c -o $@ $<

# The commit is compiled into one small object, so that a new commit relinks and rebuilds nothing else.
$(BUILD)/server/base/version.o: CPPFLAGS += -DROD_COMMIT='"$(COMMIT)"'
$(BUILD)/server/base/version.o: $(BUILD)/commit.stamp
$(BUILD)/commit.stamp: force
	@mkdir -p $(@D); echo $(COMMIT) | cmp -s - $@ || echo $(COMMIT) > $@

# CUDA: the kernels, and the C that drives them, as one object that is loaded at run time where a device is
# (engine/backend/backend.h). Machine code for Ampere and Hopper, and PTX for what comes between and after. A name that it
# lacks fails when it is linked (-z defs), not where a device is.
# Tests without a GPU need one architecture alone, unless the objects have all of them already.
CUDA_ARCH_all  := -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_80,code=compute_80
CUDA_ARCH_test := -gencode=arch=compute_90a,code=sm_90a
CUDA_STAMP     := $(BUILD)/cuda/arch.stamp
CUDA_FOR       ?= all
TESTS_FOR      := $(if $(GPU),all,$(or $(filter all,$(shell cat $(CUDA_STAMP) 2>/dev/null)),test))
CUDA_ARCH      := $(CUDA_ARCH_$(CUDA_FOR))
$(CUDA_STAMP): force
	@mkdir -p $(@D); echo $(CUDA_FOR) | cmp -s - $@ || echo $(CUDA_FOR) > $@
# DELAYS=1: kernels that wait at random (kernels/cuda/delay.cuh), in a BUILD of its own.
CUDA_DEFS  := $(if $(DELAYS),-DROD_KERNEL_DELAYS)
CUDA_HOME  = $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_OBJ  := $(patsubst %.cu,$(BUILD)/cuda/%.o,$(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu)) $(patsubst %.c,$(BUILD)/cuda/%.o,$(CUDA_C) engine/base/error.c engine/base/utf8.c engine/base/progress.c engine/state/state_layout.c engine/state/state_formats.c engine/model/weight.c engine/model/weight_quant.c engine/model/weight_codes.c kernels/dispatch.c)
$(BUILD)/rodimus_cuda.so: $(CUDA_OBJ)
	$(call say,LINK,$@)
	$(Q)$(NVCC) -shared -cudart static $(CUDA_ARCH) -Xcompiler -static-libstdc++,-static-libgcc -Xlinker -z,defs -o $@ $^ -ldl -lrt -lpthread -lm
# The same kernels for the tests, with as much of the CUDA runtime as these need (tests/gpu/under_test.h).
UNDER_TEST := $(if $(CUDA_SO),$(BUILD)/tests/gpu/kernels_under_test.so)
# Once more for racecheck: one launch whose barriers' order it sees (kernels/cuda/decode/exchange.cuh).
RACECHECKED := $(if $(CUDA_SO),$(addprefix $(BUILD)/tests/gpu/racecheck/,kernels_under_test.so test_one_launch))
UNDER_TEST_OBJ := $(filter $(BUILD)/cuda/kernels/%,$(CUDA_OBJ)) $(BUILD)/cuda/tests/gpu/under_test.o
$(BUILD)/tests/gpu/kernels_under_test.so: $(UNDER_TEST_OBJ)
$(BUILD)/tests/gpu/racecheck/kernels_under_test.so: $(filter-out %/decode/one_launch.o,$(UNDER_TEST_OBJ)) $(BUILD)/cuda/racecheck/one_launch.o
$(BUILD)/tests/gpu/kernels_under_test.so $(BUILD)/tests/gpu/racecheck/kernels_under_test.so:
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(NVCC) -shared -cudart static $(CUDA_ARCH) -o $@ $^ -ldl -lrt -lpthread
$(BUILD)/tests/gpu/racecheck/test_one_launch: $(BUILD)/tests/gpu/test_one_launch
	@mkdir -p $(@D); cp $< $@
# Once more for tests/bench/ablate: whoever asks which kernel runs asks its hook.
ABLATED := $(if $(CUDA_SO),$(addprefix $(BUILD)/tests/ablate/,rodimus_cuda.so ablate_steps))
$(BUILD)/tests/ablate/rodimus_cuda.so: $(CUDA_OBJ) $(BUILD)/cuda/tests/bench/ablate_hook.o
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(NVCC) -shared -cudart static $(CUDA_ARCH) -Xcompiler -static-libstdc++,-static-libgcc -Xlinker -z,defs,--wrap=dispatch_kernel_of -o $@ $^ -ldl -lrt -lpthread -lm
$(BUILD)/tests/ablate/ablate_steps: $(BUILD)/tests/bench/ablate_steps
	@mkdir -p $(@D); cp $< $@
define compile_cuda
	@mkdir -p $(@D)
	$(call say,NVCC,$@)
	$(Q)$(NVCC) -std=c++17 -O3 $(CUDA_ARCH) $(CUDA_DEFS) -I. -Xcompiler -fPIC,-Wall -MMD -MP -c -o $@ $<
endef
$(BUILD)/cuda/racecheck/one_launch.o: CUDA_DEFS += -DROD_KERNEL_RACECHECK
$(BUILD)/cuda/racecheck/%.o: kernels/cuda/decode/%.cu Makefile $(CUDA_STAMP)
	$(compile_cuda)
$(BUILD)/cuda/%.o: %.cu Makefile $(CUDA_STAMP)
	$(compile_cuda)
$(BUILD)/cuda/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -fPIC -I. -isystem $(CUDA_HOME)/include -MMD -MP -c -o $@ $<

# The description of the routes is compiled in, as JSON. PyYAML is Debian's, whatever python3 comes first in the path.
$(BUILD)/openapi_json.o: $(BUILD)/openapi_json.c Makefile
	$(call say,CC,$@)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -I. -MMD -MP -c -o $@ $<
$(BUILD)/page.o: $(BUILD)/page.c Makefile
	$(call say,CC,$@)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -I. -MMD -MP -c -o $@ $<
$(BUILD)/page.c: server/playground.html server/page_embed.py
	@mkdir -p $(@D)
	@python3 server/page_embed.py $< $@
$(BUILD)/openapi_json.c: openapi.yaml server/openapi_embed.py
	@mkdir -p $(@D)
	@for p in /usr/bin/python3 python3; do $$p -c 'import yaml' 2>/dev/null && exec $$p server/openapi_embed.py openapi.yaml $@; done; \
	echo "missing PyYAML: run 'make deps'" >&2; exit 1

have-headers:
	@pkg-config --exists $(PKGS) 2>/dev/null || { echo "missing libraries ($(PKGS)): run 'make deps'" >&2; exit 1; }

help:
	@sed -nE 's/^([a-z][a-z -]*):[^#=]* # (.*)/\1\t\2/p' Makefile | awk -F'\t' '{printf "  %-30s %s\n", $$1, $$2}'

deps: # the Debian packages that building and testing need
	@deploy/install-deps

run: deps # build, and serve the demo model on PORT=8080, with FLAGS; the part for GPUs, where there is one or CUDA=1
	@$(MAKE) --no-print-directory -j$(JOBS) $(if $(GPU),all,$(BUILD)/rodimus)
	@$(if $(and $(CUDA_SO),$(if $(GPU),,none)),echo "no GPU is here: the part for GPUs is not built (make run CUDA=1 builds it, as make does)")
	@$(BUILD)/rodimus serve --port $(PORT)$(if $(FLAGS), $(FLAGS))

# ---- tests: each cmocka program prints its own counts; tests/run adds them up and prints the closing line ----
# Compiling them is half of the build; what they measure and compare is in the libraries.
$(BUILD)/tests/%.o: OPT = -O1 -g1
$(BUILD)/tests/bench/%.o: OPT = -O3 -g
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(BUILD)/libserver.a $(BUILD)/librodimus.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN/../../lib:$$ORIGIN/../../../lib' -o $@ $^ $(LDLIBS) -lcmocka

# The parsers of outside bytes and what they need: the rest of the tree is not built again for fuzzing.
FUZZED := $(addprefix engine/,base text grammar model state object sched session/store) $(addprefix server/,base settings api api/*)
FUZZED := $(wildcard $(addsuffix /*.c,$(FUZZED)) server/commands/load/load_http.c server/completion/note.c engine/tools/states_name.c engine/conversation/conversation_file.c kernels/cpu/cpu_ring.c)
$(BUILD)/libfuzzed.a: $(FUZZED:%.c=$(BUILD)/%.o)
	$(call say,AR,$@)
	$(Q)rm -f $@; ar rcs $@ $^
$(BUILD)/tests/fuzz/fuzz_%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/tests/fuzz/driver.o $(BUILD)/libfuzzed.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

test: TESTS = all
test-ci: TESTS = ci
test-ci: deploy-deps

test test-ci: deps # every test; test-ci: what CI runs, with more fuzzing and test-deploy
	@$(MAKE) --no-print-directory -j$(JOBS) CUDA_FOR=$(TESTS_FOR) all test-programs
	@$(MAKE) --no-print-directory -j$(JOBS) BUILD=build/fuzz SAN="$(FUZZ_SAN)" fuzz-programs
	@tests/run $(BUILD) $(TESTS)
fuzz: deps # each fuzz program for 60 s
	@$(MAKE) --no-print-directory -j$(JOBS) BUILD=build/fuzz SAN="$(FUZZ_SAN)" fuzz-programs
	@tests/run $(BUILD) fuzz
soak: deps # what must hold for minutes: ten times the load, 200 kills, laws in int8 windows, sessions at random, three servers of one store, 2,000 random tokenizers
	@$(MAKE) --no-print-directory -j$(JOBS) all test-programs
	@RODIMUS_TEST_KILLS=200 $(BUILD)/tests/unit/session/test_sessions_kill
	@for test in laws states broken drafts company ends sessions prefix choices turns; do RODIMUS_TEST_WINDOW=int8 $(BUILD)/tests/backend/test_$$test || exit 1; done
	@RODIMUS_TEST_SOAK_S=300 RODIMUS_TEST_WINDOW=int8 $(BUILD)/tests/backend/test_lives
	@RODIMUS_TEST_SOAK_S=300 RODIMUS_TEST_SOAK_JSON=tests/bench/results/sessions-soak.json $(BUILD)/tests/unit/session/test_sessions_soak
	@RODIMUS_TEST_SOAK=1 RODIMUS_TEST_KILLS=200 RODIMUS_TEST_TOKENIZERS=2000 RODIMUS_TEST_RESULTS=tests/bench/results tests/run $(BUILD) api -o timeout=900 -k "overload or soak or kill_9 or many_streams or mixed or test_tokenizers or weakened_schema or dear_masks or test_laws or test_canary or test_lanes or test_replay"
	@$(MAKE) --no-print-directory deploy-deps
	@RODIMUS_TEST_SOAK=1 RODIMUS_TEST_KILLS=200 RODIMUS_TEST_RESULTS=tests/bench/results tests/run $(BUILD) deploy -k fleet
soak-gpu: RESULTS ?= $(BUILD)/bench
soak-gpu: deps # random lives on a GPU: SECONDS=480 SEED=n; slow kernels with DELAYS=1 BUILD=build/delays
	@$(MAKE) --no-print-directory -j$(JOBS) all $(BUILD)/tests/backend/test_lives gpu-objects
	@mkdir -p $(RESULTS)
	@RODIMUS_TEST_DEVICE=cuda RODIMUS_TEST_FULL=1 RODIMUS_TEST_SOAK_S=$(or $(SECONDS),480) RODIMUS_TEST_SEED=$(or $(SEED),$(shell date +%s)) \
		RODIMUS_TEST_SOAK_JSON=$(RESULTS)/lives$(if $(DELAYS),-delays).json $(BUILD)/tests/backend/test_lives
test-schemas: deps # structured output: 200 random schemas, types of pydantic from many seeds, the public test suite of JSON Schema
	@$(MAKE) --no-print-directory -j$(JOBS) all api-programs
	@RODIMUS_TEST_SCHEMAS=200 RODIMUS_TEST_SEEDS=20 tests/run $(BUILD) api -k "random_schemas or pydantic or schema_suite"
bench: RESULTS ?= $(BUILD)/bench
bench: deps # the engine's figures on this machine, as a table and as rows in RESULTS; FLAGS: --seconds S
	@$(MAKE) --no-print-directory -j$(JOBS) all
	@tests/bench/record $(BUILD)/rodimus $(RESULTS) $(FLAGS)
	@echo "the rows are in $(RESULTS)"
plots: # the pictures of the READMEs, from tests/bench/results
	@cmp -s tests/bench/requirements.txt build/venv-plots/made-from || { rm -rf build/venv-plots && /usr/bin/python3 -m venv build/venv-plots && \
		build/venv-plots/bin/pip install --quiet --disable-pip-version-check --no-deps -r tests/bench/requirements.txt && \
		cp tests/bench/requirements.txt build/venv-plots/made-from; }
	@build/venv-plots/bin/python tests/bench/plots.py
bench-sessions: # what a session's turn costs, as JSON; FLAGS: of tests/bench/sessions.c
	@$(MAKE) --no-print-directory -j$(JOBS) all $(BUILD)/tests/bench/sessions >&2
	@dir=$$(mktemp -d); $(BUILD)/tests/bench/sessions --model config/models/tales --dir $$dir $(FLAGS); rm -rf $$dir
bench-swap: # what moving sessions costs, as JSON; FLAGS: of tests/bench/swap.c
	@$(MAKE) --no-print-directory -j$(JOBS) all $(BUILD)/tests/bench/swap >&2
	@[ -z "$(CUDA_SO)" ] || ln -srf $(BUILD)/rodimus_cuda.so $(BUILD)/tests/bench/
	@$(BUILD)/tests/bench/swap $(or $(FLAGS),--model config/models/tales)
bench-replay: RESULTS ?= $(BUILD)/bench
bench-replay: deps # how much of agents' sessions is read; FLAGS: of tests/bench/replay
	@$(MAKE) --no-print-directory -j$(JOBS) all >&2
	@mkdir -p $(RESULTS)
	@tests/bench/replay $(RESULTS)/replay.json --all $(FLAGS)
bench-conversations: # a conversation's next request, from host memory and from a file, as JSON; FLAGS: of tests/bench/conversations.c
	@$(MAKE) --no-print-directory -j$(JOBS) all $(BUILD)/tests/bench/conversations >&2
	@[ -z "$(CUDA_SO)" ] || ln -srf $(BUILD)/rodimus_cuda.so $(BUILD)/tests/bench/
	@dir=$$(mktemp -d); $(BUILD)/tests/bench/conversations --dir $$dir $(or $(FLAGS),--model config/models/skills); rm -rf $$dir
bench-mask: # what structured output costs a step, as JSON
	@$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/tests/bench/mask >&2
	@$(BUILD)/tests/bench/mask
bench-dear: # a stream beside rows whose masks are dear, as JSON; FLAGS: rounds, seconds
	@$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/tests/bench/dear >&2
	@$(BUILD)/tests/bench/dear $(FLAGS)
bench-policy: # what the scheduler's constants are worth in virtual time
	@$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/tests/bench/policy >&2
	@$(BUILD)/tests/bench/policy
bench-masked: # what structured output costs all streams, as JSON; FLAGS: of tests/bench/masked.c
	@$(MAKE) --no-print-directory -j$(JOBS) all $(BUILD)/tests/bench/masked >&2
	@[ -z "$(CUDA_SO)" ] || ln -srf $(BUILD)/rodimus_cuda.so $(BUILD)/tests/bench/
	@$(BUILD)/tests/bench/masked $(FLAGS)
bench-ablate: RESULTS ?= $(BUILD)/bench
bench-ablate: # what each rule of kernels/dispatch.c is worth on this GPU; FLAGS: of tests/bench/ablate
	@$(MAKE) --no-print-directory -j$(JOBS) $(ABLATED)
	@mkdir -p $(RESULTS)
	@tests/bench/ablate $(BUILD)/tests/ablate/ablate_steps $(RESULTS)/ablate.json $(FLAGS)
fuzz-programs: $(FUZZ_BIN)
deploy-deps:
	@deploy/install-deps deploy
test-deploy: deploy-deps # replicas behind HAProxy, nginx, Caddy and Envoy, the image in a Docker engine, systemd, upgrades, the files of deploy/
	@$(MAKE) --no-print-directory -j$(JOBS) all $(BUILD)/tests/unit/object/test_object_probe
	@tests/run $(BUILD) deploy
test-browser: # the playground in Debian's Chromium; screenshots in build/browser
	@deploy/install-deps browser
	@$(MAKE) --no-print-directory -j$(JOBS) all
	@tests/run $(BUILD) browser
# Programs look for the CUDA object in their own folder.
test-gpu: deps # what needs a GPU
	@$(MAKE) --no-print-directory -j$(JOBS) all test-programs gpu-objects
	@tests/run $(BUILD) gpu
# All clients, also those with packages too large for every run: the openai package, curl and the load tools' bodies,
# schemathesis over openapi.yaml, lm-evaluation-harness through the server, agents' frameworks, Claude Code and Codex.
test-clients: deps # the clients that are too large for every run: openapi-python-client, schemathesis, lm-evaluation-harness, routers, Dynamo, agents' frameworks
	@$(MAKE) --no-print-directory -j$(JOBS) all
	@tests/run $(BUILD) clients
test-programs: $(TEST_BIN) api-programs
api-programs: $(API_BIN)
gpu-objects: $(UNDER_TEST)
	@mkdir -p $(BUILD)/tests/backend $(BUILD)/tests/gpu
	@[ -z "$(CUDA_SO)" ] || for d in backend gpu; do ln -srf $(BUILD)/rodimus_cuda.so $(BUILD)/tests/$$d/; done
sanitize-gpu: deps # the kernel tests under compute-sanitizer
	@$(MAKE) --no-print-directory -j$(JOBS) test-programs gpu-objects $(RACECHECKED)
	@tests/gpu/sanitize $(BUILD)/tests/gpu
test-c: test-programs # the C tests alone
	@tests/run $(BUILD) c

asan: deps # the C tests under AddressSanitizer
	@$(MAKE) --no-print-directory -j$(JOBS) BUILD=build/asan SAN="-fsanitize=address -fno-omit-frame-pointer" test-c
ubsan: deps # under UndefinedBehaviorSanitizer
	@$(MAKE) --no-print-directory -j$(JOBS) BUILD=build/ubsan SAN="-fsanitize=undefined -fno-sanitize-recover=all" test-c
tsan: deps # under ThreadSanitizer
	@$(MAKE) --no-print-directory -j$(JOBS) BUILD=build/tsan SAN="-fsanitize=thread" test-c
# The API tests against a server under a sanitizer: SERVER_TESTS is a pytest expression, empty for all. A report, or a leak at
# the end, fails the test in which it came.
SERVER_TESTS ?=
asan-api: SANITIZER = address -fno-omit-frame-pointer
ubsan-api: SANITIZER = undefined -fno-sanitize-recover=all
tsan-api: SANITIZER = thread
asan-api ubsan-api tsan-api: deps # the API tests against a server under one of them
	@$(MAKE) --no-print-directory -j$(JOBS) BUILD=build/$(@:-api=) SAN="-fsanitize=$(SANITIZER)" all api-programs
	@rm -rf build/$(@:-api=)/api-logs build/$(@:-api=)/reports; tests/run build/$(@:-api=) api -v --durations=10 -k "$(SERVER_TESTS)"

format: # the C and CUDA code, with clang-format 14, Debian 12's; another version may disagree with it
	@command -v clang-format >/dev/null || { echo "make format needs clang-format (apt-get install clang-format)" >&2; exit 1; }
	@clang-format -i $(shell git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh')
clean: # removes build/
	rm -rf build

# The libraries go with their licences. glibc is the other machine's.
BUNDLE := $(BUILD)/bundle
bundle: all # build/bundle: what another machine needs, in one folder; its rodimus runs there as it is
	@rm -rf $(BUNDLE); mkdir -p $(BUNDLE)/lib $(BUNDLE)/config/models
	@cp -r $(dir $(wildcard config/models/*/config.json)) $(BUNDLE)/config/models/
	@cp LICENSE $(CUDA_SO) $(BUNDLE)/
	@ldd $(BUILD)/rodimus | awk '$$3 ~ /^\// {print $$3}' | grep -vE '/(libc|libm|libdl|libpthread|librt)\.so' | while read -r so; do \
		cp -L $$so $(BUNDLE)/lib/; package=$$(dpkg -S "*/$${so##*/}" | sed 's/:.*//;q'); cp -L /usr/share/doc/$$package/copyright $(BUNDLE)/lib/$$package.copyright; done
	$(call say,LINK,$(BUNDLE)/rodimus)
	$(Q)$(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN/lib' -Wl,--disable-new-dtags -o $(BUNDLE)/rodimus $(BUILD)/server/main.o $(BUILD)/libserver.a $(BUILD)/librodimus.a $(LDLIBS)

# The tests and benchmarks of a GPU, for a machine with a driver and no toolchain: unpacked in the root of a checkout there, as its
# build/, it is what tests/gpu/away, tests/run, tests/gpu/sanitize and tests/bench/record-* need.
gpu-bundle: deps # build/gpu-bundle.tgz: the GPU's tests and benchmarks for a machine without a toolchain
	@$(MAKE) --no-print-directory -j$(JOBS) test-programs gpu-objects bundle $(RACECHECKED) $(BUILD)/tests/bench/swap $(BUILD)/tests/bench/masked $(BUILD)/tests/bench/mask
	@ln -srf $(BUILD)/rodimus_cuda.so $(BUILD)/tests/bench/
	@rm -rf $(BUILD)/away; mkdir -p $(BUILD)/away/tests
	@cp -a $(BUNDLE)/rodimus $(BUNDLE)/rodimus_cuda.so $(BUNDLE)/lib $(BUILD)/away/
	@cp -L $$(ldd $(BUILD)/tests/gpu/test_rows | awk '/libcmocka/ {print $$3}') $(BUILD)/away/lib/
	@cd $(BUILD) && cp -a --parents $(filter tests/gpu/% tests/backend/%,$(TEST_BIN:$(BUILD)/%=%)) tests/bench/swap tests/bench/masked tests/bench/mask tests/gpu/kernels_under_test.so $(RACECHECKED:$(BUILD)/%=%) tests/gpu/rodimus_cuda.so tests/backend/rodimus_cuda.so tests/bench/rodimus_cuda.so away/
	@find $(BUILD)/away -type f -perm -u+x ! -name '*.sh' -exec strip -S {} +
	@tar czf $(BUILD)/gpu-bundle.tgz -C $(BUILD)/away . && rm -rf $(BUILD)/away && ls -l $(BUILD)/gpu-bundle.tgz

# What bench-ablate needs on a machine with a driver and no toolchain, to be unpacked there as build/.
ablate-bundle: $(ABLATED) # build/ablate.txz
	@rm -rf $(BUILD)/away; mkdir -p $(BUILD)/away/lib $(BUILD)/away/tests/ablate
	@cp $(ABLATED) $(BUILD)/away/tests/ablate/ && strip -S $(BUILD)/away/tests/ablate/*
	@ldd $(BUILD)/tests/ablate/ablate_steps | awk '$$3 ~ /^\// {print $$3}' | grep -vE '/(libc|libm|libdl|libpthread|librt)\.so' | xargs -I{} cp -L {} $(BUILD)/away/lib/
	@tar c -C $(BUILD)/away . | xz -T2 >$(BUILD)/ablate.txz && rm -rf $(BUILD)/away && ls -l $(BUILD)/ablate.txz

force:
.PHONY: bench-conversations ablate-bundle bench-ablate help api-programs bench gpu-bundle soak-gpu asan-api ubsan-api tsan-api bench-sessions soak deploy-deps test-deploy plots bench-swap bench-replay bench-mask bench-masked bench-dear bench-policy test-ci test-schemas test-clients bundle gpu-objects sanitize-gpu test-gpu all deps run test test-programs test-c fuzz fuzz-programs asan ubsan tsan format clean force have-headers test-browser
.PRECIOUS: $(BUILD)/%.o
.SECONDARY:
-include $(ENGINE_OBJ:.o=.d) $(if $(CUDA_SO),$(CUDA_OBJ:.o=.d) $(BUILD)/cuda/tests/gpu/under_test.d $(BUILD)/cuda/racecheck/one_launch.d $(BUILD)/cuda/tests/bench/ablate_hook.d) $(SERVER_OBJ:.o=.d) $(TEST_BIN:=.d) $(API_BIN:=.d) $(BUILD)/tests/bench/mask.d $(BUILD)/tests/bench/masked.d $(BUILD)/tests/bench/dear.d $(BUILD)/tests/bench/policy.d $(BUILD)/tests/bench/swap.d $(BUILD)/tests/bench/sessions.d $(FUZZ_BIN:=.d) $(BUILD)/tests/fuzz/driver.d $(BUILD)/server/main.d
