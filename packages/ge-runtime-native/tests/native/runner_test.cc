// Tests of the runner against the fake CANN; run under sanitizers.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
using MayLeak = __lsan::ScopedDisabler;
#else
struct MayLeak {
  MayLeak() {}
};
#endif

#include "../../src/ge_runtime/native/ge_cann_runner.h"

namespace {

std::atomic<int> failures{0};
thread_local int allocations_left = -1;  // of this thread, before one fails; below 0 none does

}  // namespace

void* operator new(size_t bytes) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  void* address = std::malloc(bytes == 0 ? 1 : bytes);
  if (address == nullptr) throw std::bad_alloc();
  return address;
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (...) {
    return nullptr;
  }
}
void operator delete(void* address) noexcept { std::free(address); }
void operator delete(void* address, size_t) noexcept { std::free(address); }

namespace {

#define EXPECT(condition)                                                                      \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      std::printf("%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, gec_error());            \
      ++failures;                                                                              \
    }                                                                                          \
  } while (false)

int Count(const char* what) {
  static auto* count = reinterpret_cast<int (*)(const char*)>(dlsym(dlopen("libascendcl.so", RTLD_LAZY | RTLD_NOLOAD), "fake_count"));
  return count != nullptr ? count(what) : -1;
}

bool Says(const char* part) { return std::strstr(gec_error(), part) != nullptr; }

gec_graph* Add(const char* text, size_t n_inputs) {
  size_t n_outputs = 0;
  std::sscanf(std::strstr(text, "out="), "out=%zu", &n_outputs);
  gec_graph* graph = nullptr;
  EXPECT(gec_graph_add("g", text, std::strlen(text), nullptr, 0, n_inputs, n_outputs, &graph) == GEC_OK);
  return graph;
}

gec_graph* Compiled(const char* text, size_t n_inputs) {
  gec_graph* graph = Add(text, n_inputs);
  EXPECT(gec_graph_compile(graph) == GEC_OK);
  const int64_t dims[] = {4};
  for (size_t i = 0; i < n_inputs; ++i) EXPECT(gec_graph_describe(graph, i, GEC_ON_DEVICE, 0, 1, dims) == GEC_OK);
  return graph;
}

void Static(void* stream) {
  gec_graph* graph = Compiled("static in=2 out=3 work=4096", 2);
  int is_static = 0;
  size_t n = 0;
  uint64_t constants = 0, work = 0;
  EXPECT(gec_graph_info(graph, &is_static, &n, &constants, &work) == GEC_OK);
  EXPECT(is_static == 1 && n == 3 && constants == 64 && work == 4096);
  gec_value value{};
  EXPECT(gec_graph_output(graph, 2, &value) == GEC_OK && value.rank == 1 && value.dims[0] == 4 && value.bytes == 16);
  EXPECT(gec_graph_output(graph, 3, &value) == GEC_ARGUMENT);
  float a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8}, out[3][4] = {};
  const uint64_t in[] = {reinterpret_cast<uint64_t>(a), reinterpret_cast<uint64_t>(b)};
  const uint64_t to[] = {reinterpret_cast<uint64_t>(out[0]), reinterpret_cast<uint64_t>(out[1]),
                         reinterpret_cast<uint64_t>(a)};  // the third updates its input
  for (int i = 0; i < 3; ++i) EXPECT(gec_graph_run(graph, stream, in, to, nullptr) == GEC_OK);
  EXPECT(out[0][0] == 4.0F && out[1][3] == 9.0F && a[0] == 4.0F);
  const uint64_t nowhere[] = {0, to[1], to[2]};
  EXPECT(gec_graph_run(graph, stream, in, nowhere, nullptr) == GEC_ARGUMENT);
  const uint64_t empty[] = {0, in[1]};
  EXPECT(gec_graph_run(graph, stream, empty, to, nullptr) == GEC_ARGUMENT && Says("input 0 of graph 'g'"));
  // a larger graph on the same stream moves the shared work memory; the first one follows
  gec_graph* larger = Compiled("static in=2 out=3 work=9000", 2);
  EXPECT(gec_graph_run(larger, stream, in, to, nullptr) == GEC_OK);
  EXPECT(gec_graph_run(graph, stream, in, to, nullptr) == GEC_OK);
  gec_graph_free(graph);
  EXPECT(gec_graph_run(larger, stream, in, to, nullptr) == GEC_OK);
  gec_graph_free(larger);
}

void Dynamic(void* stream) {
  gec_graph* graph = Compiled("dynamic in=1 out=2", 1);
  std::vector<gec_result*> kept;
  for (int64_t size : {4, 7, 0, 4}) {
    std::vector<float> x(static_cast<size_t>(size) + 1, 2.0F);
    EXPECT(gec_graph_describe(graph, 0, GEC_ON_DEVICE, 0, 1, &size) == GEC_OK);
    const uint64_t in[] = {size == 0 ? 0 : reinterpret_cast<uint64_t>(x.data())};
    const uint64_t to[] = {0, 0};
    gec_value values[2] = {};
    EXPECT(gec_graph_run(graph, stream, in, to, values) == GEC_OK);
    EXPECT(values[0].rank == 1 && values[0].dims[0] == size && values[0].bytes == static_cast<uint64_t>(size) * 4);
    if (size != 0) EXPECT(static_cast<float*>(values[1].address)[size - 1] == 3.0F);
    gec_result_free(values[0].owner);
    kept.push_back(values[1].owner);
  }
  EXPECT(Count("engine_blocks") == 4);
  gec_graph_free(graph);  // results outlive their graph
  for (gec_result* result : kept) gec_result_free(result);
  EXPECT(Count("engine_blocks") == 0);
}

void Refusals(void* stream) {
  gec_graph* graph = nullptr;
  EXPECT(gec_graph_add("broken", "?", 1, nullptr, 0, 0, 0, &graph) == GEC_ENGINE && Says("E18888") && Says("'broken'"));
  graph = Add("static in=0 out=1 bad", 0);
  EXPECT(gec_graph_compile(graph) == GEC_ENGINE && Says("EZ3003") && Says("add_7"));
  EXPECT(gec_graph_run(graph, stream, nullptr, nullptr, nullptr) == GEC_STATE);
  gec_graph_free(graph);
  graph = Compiled("static in=1 out=1", 1);
  const int64_t dims[26] = {-1};
  EXPECT(gec_graph_describe(graph, 0, GEC_ON_DEVICE, 0, 1, dims) == GEC_ARGUMENT);
  EXPECT(gec_graph_describe(graph, 0, GEC_ON_DEVICE, 0, 26, dims) == GEC_ARGUMENT);
  EXPECT(gec_graph_describe(graph, 0, GEC_ON_DEVICE, 13, 0, dims) == GEC_ARGUMENT);
  EXPECT(gec_graph_describe(graph, 1, GEC_ON_DEVICE, 0, 0, dims) == GEC_ARGUMENT);
  gec_graph_free(graph);
  void* address = nullptr;
  EXPECT(gec_memory_new(stream, uint64_t{1} << 40, &address) == GEC_MEMORY && address == nullptr && Says("207001"));
  EXPECT(gec_session_open(0, nullptr, 0, nullptr, 0) == GEC_STATE && Says("already"));
}

void Exceptions(void* stream) {
  gec_graph* graph = Add("static in=0 out=1 throw", 0);
  EXPECT(gec_graph_compile(graph) == GEC_ENGINE && Says("no kernel, no manners"));
  gec_graph_free(graph);
  graph = Add("static in=0 out=1 odd", 0);
  EXPECT(gec_graph_compile(graph) == GEC_ENGINE && Says("unknown type"));
  gec_graph_free(graph);
  const char text[] = "static in=0 out=1";
  for (const size_t many : {size_t{1} << 50, SIZE_MAX, sizeof(text)}) {
    EXPECT(gec_graph_add("g", text, sizeof(text) - 1, nullptr, 0, many, 1, &graph) == GEC_ARGUMENT && Says("cannot have"));
    EXPECT(gec_graph_add("g", text, sizeof(text) - 1, nullptr, 0, 0, many, &graph) == GEC_ARGUMENT && graph == nullptr);
  }
  for (const uint64_t bytes : {UINT64_MAX, UINT64_MAX - 100, UINT64_MAX - (uint64_t{2} << 20) + 2}) {
    void* address = stream;
    EXPECT(gec_memory_new(stream, bytes, &address) == GEC_MEMORY && address == nullptr && Says("more than any memory"));
  }
  // 2^62 elements of 4 bits, less one: the bits fit into 64, rounding them up to bytes did not
  graph = Compiled("static in=1 out=1", 1);
  const int64_t dims[] = {(int64_t{1} << 62) - 1};
  const int32_t int4 = 29;
  EXPECT(gec_graph_describe(graph, 0, GEC_ON_DEVICE, int4, 1, dims) == GEC_OK);
  const uint64_t empty[] = {0}, to[] = {1};
  EXPECT(gec_graph_run(graph, stream, empty, to, nullptr) == GEC_ARGUMENT && Says("address 0"));
  gec_graph_free(graph);
}

// The n-th allocation of a call fails, for every n: an error, no end of the process, nothing lost.
void Exhausted(void* stream) {
  float x[4] = {1, 2, 3, 4}, y[4] = {};
  const uint64_t in[] = {reinterpret_cast<uint64_t>(x)};
  const int64_t dims[] = {4};
  const char* texts[] = {"static in=1 out=2 work=512", "dynamic in=1 out=2"};
  const char* options[] = {"a long name for an option of a graph", "and a long text that it is given as a value"};
  for (const char* text : texts) {
    const uint64_t fixed = text[0] == 's' ? reinterpret_cast<uint64_t>(y) : 0;
    const uint64_t to[] = {fixed, fixed};
    int stage = 0;  // how many calls went through; each is to fail at least once
    for (int n = 0; stage < 5 && n < 1000; ++n) {
      gec_graph* graph = nullptr;
      gec_value values[2] = {};
      allocations_left = n;
      int code = gec_graph_add("a name that is not short", text, std::strlen(text), options, 1, 1, 2, &graph);
      stage = 1;
      if (code == GEC_OK) code = gec_graph_compile(graph), ++stage;
      if (code == GEC_OK) code = gec_graph_load(graph, stream, options, 1), ++stage;
      if (code == GEC_OK) code = gec_graph_describe(graph, 0, GEC_ON_DEVICE, 0, 1, dims), ++stage;
      if (code == GEC_OK) code = gec_graph_run(graph, stream, in, to, values), ++stage;
      allocations_left = -1;
      EXPECT(code == GEC_OK || code == GEC_MEMORY || code == GEC_ENGINE);
      if (code != GEC_OK) stage = 0;
      for (const gec_value& value : values) gec_result_free(value.owner);
      gec_graph_free(graph);
    }
    EXPECT(stage == 5);
    EXPECT(Count("engine_blocks") == 0);
  }
  for (int n = 0; n < 20; ++n) {
    void *address = nullptr, *other = nullptr;
    allocations_left = n;
    const int code = gec_memory_new(stream, 777777, &address);
    const int made = gec_stream_new(&other);
    allocations_left = -1;
    EXPECT(code == GEC_OK || code == GEC_MEMORY);
    if (code == GEC_OK) EXPECT(gec_memory_free(address) == GEC_OK);
    if (made == GEC_OK) EXPECT(gec_stream_free(other) == GEC_OK);
  }
}

// The session ends while other threads run, add and free graphs and results of it.
void Ending() {
  for (int round = 0; round < 20; ++round) {
    EXPECT(gec_session_open(0, nullptr, 0, nullptr, 0) == GEC_OK);
    std::vector<std::thread> threads;
    std::atomic<int> ready{0};
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&ready, t] {
        void* stream = nullptr;
        {
          const MayLeak left_to_the_session;
          if (gec_stream_new(&stream) != GEC_OK) stream = nullptr;
        }
        ++ready;
        std::vector<gec_graph*> graphs;
        std::vector<gec_result*> results;
        const char* text = t % 2 == 0 ? "static in=1 out=1 work=512" : "dynamic in=1 out=1";
        float x[4] = {1, 1, 1, 1}, y[4] = {};
        const int64_t dims[] = {4};
        const uint64_t in[] = {reinterpret_cast<uint64_t>(x)};
        const uint64_t to[] = {t % 2 == 0 ? reinterpret_cast<uint64_t>(y) : 0};
        for (int code = GEC_OK; code == GEC_OK && stream != nullptr;) {
          gec_graph* graph = nullptr;
          gec_value value{};
          code = gec_graph_add("g", text, std::strlen(text), nullptr, 0, 1, 1, &graph);
          if (graph != nullptr) graphs.push_back(graph);
          if (code == GEC_OK) code = gec_graph_compile(graph);
          if (code == GEC_OK) code = gec_graph_describe(graph, 0, GEC_ON_DEVICE, 0, 1, dims);
          if (code == GEC_OK) {
            const MayLeak left_to_the_session;  // results that nobody may release after its end
            code = gec_graph_run(graph, stream, in, to, &value);
          }
          if (value.owner != nullptr) results.push_back(value.owner);
          EXPECT(code == GEC_OK || (code == GEC_STATE && Says("session")));
          if (graphs.size() > 4) {
            gec_graph_free(graphs.front());
            graphs.erase(graphs.begin());
          }
        }
        for (gec_graph* graph : graphs) gec_graph_free(graph);
        for (gec_result* result : results) gec_result_free(result);
      });
    }
    while (ready < 3) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
    EXPECT(gec_session_close(1) == GEC_OK);
    for (std::thread& thread : threads) thread.join();
    EXPECT(gec_session_is_open() == 0 && Count("sessions") == 0 && Count("graphs") == 0);
  }
}

// The caller's memory functions come back into the runner, as a garbage collection does: while the session ends they free
// the very graph that is being released, and the next; neither ends the session, nor waits for ever.
struct Reentrant {
  gec_graph* first = nullptr;
  gec_graph* second = nullptr;
  int given = 0;
  int refused = 0;
};

void Nested() {
  static Reentrant self;
  self = {};
  const auto take = [](void*, void*, uint64_t bytes) { return std::malloc(bytes); };
  const auto give = [](void* context, void*, void* address) {
    auto* mine = static_cast<Reentrant*>(context);
    std::free(address);
    ++mine->given;
    if (gec_session_close(1) == GEC_STATE && Says("from within")) ++mine->refused;
    gec_graph* graphs[] = {mine->first, mine->second};
    mine->first = mine->second = nullptr;
    for (gec_graph* graph : graphs) gec_graph_free(graph);
  };
  EXPECT(gec_use_allocator(take, give, &self) == GEC_OK);
  EXPECT(gec_session_open(0, nullptr, 0, nullptr, 0) == GEC_OK);
  void* stream = nullptr;
  EXPECT(gec_stream_new(&stream) == GEC_OK);
  float x[4] = {}, y[4] = {};
  const uint64_t in[] = {reinterpret_cast<uint64_t>(x)}, to[] = {reinterpret_cast<uint64_t>(y)};
  for (gec_graph** graph : {&self.first, &self.second}) {
    *graph = Compiled("static in=1 out=1 work=512", 1);
    EXPECT(gec_graph_run(*graph, stream, in, to, nullptr) == GEC_OK);
  }
  EXPECT(gec_stream_free(stream) == GEC_OK);
  EXPECT(gec_session_close(1) == GEC_OK);
  EXPECT(self.given >= 2 && self.refused == self.given);
  EXPECT(self.first == nullptr && Count("graphs") == 0);
  EXPECT(gec_use_allocator(nullptr, nullptr, nullptr) == GEC_OK);
}

void Memory(void* stream) {
  void *a = nullptr, *b = nullptr;
  EXPECT(gec_memory_new(stream, 1000, &a) == GEC_OK);
  EXPECT(gec_memory_free(a) == GEC_OK);
  EXPECT(gec_memory_new(stream, 900, &b) == GEC_OK && a == b);  // same class, same stream
  EXPECT(gec_memory_free(b) == GEC_OK);
  EXPECT(gec_memory_free(b) == GEC_STATE);  // twice
}

void Threads() {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      void* stream = nullptr;
      EXPECT(gec_stream_new(&stream) == GEC_OK);
      for (int i = 0; i < 20; ++i) {
        gec_graph* graph = Compiled(i % 2 == 0 ? "static in=1 out=1 work=512" : "dynamic in=1 out=1", 1);
        float x[4] = {1, 1, 1, 1}, y[4] = {};
        const uint64_t in[] = {reinterpret_cast<uint64_t>(x)};
        const uint64_t to[] = {i % 2 == 0 ? reinterpret_cast<uint64_t>(y) : 0};
        gec_value value{};
        EXPECT(gec_graph_run(graph, stream, in, to, &value) == GEC_OK);
        gec_result_free(value.owner);
        gec_graph_free(graph);
      }
      EXPECT(gec_stream_free(stream) == GEC_OK);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void Fork(gec_graph* graph, void* stream) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    gec_graph* other = nullptr;
    float x[4] = {};
    const uint64_t at[] = {reinterpret_cast<uint64_t>(x)};
    EXPECT(gec_graph_run(graph, stream, at, at, nullptr) == GEC_STATE && Says("forked"));
    EXPECT(gec_graph_add("g", "static in=0 out=0", 17, nullptr, 0, 0, 0, &other) == GEC_STATE && Says("forked"));
    EXPECT(gec_session_open(0, nullptr, 0, nullptr, 0) == GEC_STATE && Says("forked"));
    EXPECT(gec_session_is_open() == 0);
    gec_graph_free(graph);
    _exit(failures == 0 ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void Groups() {
  char info[GEC_ROOT_BYTES] = {}, name[GEC_NAME_BYTES] = {};
  void* group = nullptr;
  EXPECT(gec_group_open(2, info, 1, &group, name) == GEC_DEVICE && Says("HcclCommInitRootInfo failed with 1, parameter"));
  EXPECT(group == nullptr);
  EXPECT(gec_group_root(info) == GEC_OK);
  EXPECT(gec_group_open(2, info, 2, &group, name) == GEC_ENGINE && Says("no such rank"));
  EXPECT(gec_group_open(4, info, 3, &group, name) == GEC_DEVICE && Says("HcclGetCommName"));
  EXPECT(group == nullptr && Count("groups") == 0);
  EXPECT(gec_group_open(2, info, 1, &group, name) == GEC_OK);
  EXPECT(std::string(name) == "fake-group" && Count("groups") == 1);
  EXPECT(gec_group_close(group) == GEC_OK && Count("groups") == 0);
}

}  // namespace

int main() {
  EXPECT(gec_session_open(0, nullptr, 0, nullptr, 0) == GEC_MISSING);
  std::string absent;
  const auto report = [](void* into, const char*, const char* symbol, const char*, int, int found, const char*) {
    if (found == 0) *static_cast<std::string*>(into) += std::string(symbol != nullptr ? symbol : "library") + " ";
  };
  EXPECT(gec_open(report, &absent) == GEC_OK);
  // what the fake lacks is what only older or newer CANN needs
  for (const char* name : {"GeSession", "Allocator", "aclInit", "Summary", "GEGetErrorMsg", "library"}) {
    EXPECT(absent.find(name) == std::string::npos);
  }
  EXPECT(absent.find("aclrtGetMemInfo") != std::string::npos);
  gec_graph* graph = nullptr;
  EXPECT(gec_graph_add("g", "static in=0 out=0", 17, nullptr, 0, 0, 0, &graph) == GEC_STATE && Says("no session"));
  EXPECT(gec_session_open(7, nullptr, 0, nullptr, 0) == GEC_DEVICE && Says("the fake device said so"));
  const char* wrong[] = {"fail", "1"};
  EXPECT(gec_session_open(0, wrong, 1, nullptr, 0) == GEC_ENGINE && Says("E10001"));
  char root[GEC_ROOT_BYTES];
  EXPECT(gec_group_root(root) == GEC_STATE);
  EXPECT(gec_session_open(1, nullptr, 0, nullptr, 0) == GEC_OK);
  char chip[64], version[64];
  int64_t cube = 0, vector = 0;
  EXPECT(gec_device_facts(chip, sizeof(chip), version, sizeof(version), &cube, &vector) == GEC_OK);
  EXPECT(std::string(chip) == "Ascend910B1" && std::string(version) == "8.5.0" && cube == 24 && vector == 48);
  void* stream = nullptr;
  EXPECT(gec_stream_new(&stream) == GEC_OK);
  Static(stream);
  Dynamic(stream);
  Refusals(stream);
  Memory(stream);
  Exceptions(stream);
  Exhausted(stream);
  Groups();
  Threads();
  graph = Compiled("static in=1 out=1", 1);
  gec_graph* late = Compiled("dynamic in=1 out=1", 1);
  Fork(graph, stream);
  float x[4] = {};
  const uint64_t at[] = {reinterpret_cast<uint64_t>(x)};
  const uint64_t nowhere[] = {0};
  gec_value value{};
  EXPECT(gec_graph_run(graph, stream, at, at, nullptr) == GEC_OK);
  EXPECT(gec_graph_run(late, stream, at, nowhere, &value) == GEC_OK);
  gec_result_free(value.owner);
  EXPECT(gec_stream_free(stream) == GEC_OK);
  EXPECT(gec_session_close(1) == GEC_OK);
  EXPECT(Count("sessions") == 0 && Count("graphs") == 0 && Count("streams") == 0);
  EXPECT(Count("device_blocks") == 0);
  EXPECT(gec_graph_run(graph, nullptr, at, at, nullptr) == GEC_STATE && Says("ended"));
  gec_graph_free(graph);
  // a later session is another one; what belongs to the first stays ended
  EXPECT(gec_session_open(0, nullptr, 0, nullptr, 0) == GEC_OK);
  EXPECT(gec_graph_run(late, nullptr, at, nowhere, &value) == GEC_STATE && Says("ended"));
  gec_graph_free(late);
  EXPECT(gec_session_close(1) == GEC_OK);
  Ending();
  Nested();
  std::printf(failures == 0 ? "ok\n" : "%d failures\n", failures.load());
  return failures == 0 ? 0 : 1;
}
