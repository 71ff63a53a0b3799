#include "session.h"

#include <cstring>

namespace cann {
namespace {

thread_local std::string last_error;
thread_local const char* plain_error = nullptr;  // instead of it
thread_local int uses = 0;                       // of the session by this thread, one within the other
thread_local uint64_t device_set_for = 0;  // session whose device this thread has made current

std::string DeviceText() {
  const char* text = Functions().recent_error != nullptr ? Functions().recent_error() : nullptr;
  return text != nullptr && *text != '\0' ? std::string(": ") + text : std::string();
}

struct Block : MemBlock {
  Block(Allocator& owner, void* at, size_t size, const Memory& origin) : MemBlock(owner, at, size), from(origin) {}
  Memory from;
};

// Why Alone was not to be had.
int Busy(const char* what) {
  if (TheRunner().forked()) return TheRunner().Check(0);
  return Fail(GEC_STATE, std::string(what) + " from within a call of this interface");
}

Options Pairs(const char* const* texts, size_t n) {
  Options found;
  for (size_t i = 0; i < n; ++i) found[texts[2 * i]] = texts[2 * i + 1];
  return found;
}

}  // namespace

int Fail(int code, const std::string& text) {
  last_error = text;
  plain_error = nullptr;
  return code;
}

int FailPlain(int code, const char* text) noexcept {
  plain_error = text;
  return code;
}

int FailCaught() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return FailPlain(GEC_MEMORY, "out of host memory");
  } catch (const std::exception& error) {
    try {
      return Fail(GEC_ENGINE, std::string("an exception ended the call: ") + error.what());
    } catch (...) {
      return FailPlain(GEC_MEMORY, "out of host memory");
    }
  } catch (...) {
    return FailPlain(GEC_ENGINE, "an exception of unknown type ended the call");
  }
}

// In a forked process a lock may still be held by a thread that is not there, and nothing runs anyway.
Using::Using() : holds_(uses == 0 && !TheRunner().forked()) {
  if (holds_) TheRunner().life.lock_shared();
  ++uses;
}

Using::~Using() {
  --uses;
  if (holds_) TheRunner().life.unlock_shared();
}

Alone::Alone() : holds_(uses == 0 && !TheRunner().forked()) {
  if (!holds_) return;
  TheRunner().life.lock();
  ++uses;
}

Alone::~Alone() {
  if (!holds_) return;
  --uses;
  TheRunner().life.unlock();
}

int FailDevice(const char* call, AclError code) {
  return Fail(code == kAclOutOfMemory ? GEC_MEMORY : GEC_DEVICE,
              std::string(call) + " failed with " + std::to_string(code) + DeviceText());
}

int FailEngine(const std::string& call, Status status) {
  const std::string text = GeErrorText();
  return Fail(GEC_ENGINE, call + " failed with " + std::to_string(status) + (text.empty() ? "" : ": " + text));
}

MemBlock* StreamAllocator::Malloc(size_t bytes) {
  try {
    Memory from;
    void* address = TheRunner().Take(stream_, bytes, &from);
    if (address == nullptr) return nullptr;
    MemBlock* block = new (std::nothrow) Block(*this, address, bytes, from);
    if (block == nullptr) Runner::Give(from, stream_, address);
    return block;
  } catch (...) {
    return nullptr;
  }
}

void StreamAllocator::Free(MemBlock* block) {
  auto* mine = static_cast<Block*>(block);
  try {
    Runner::Give(mine->from, stream_, mine->address);
  } catch (...) {  // no memory to note it: the block stays in use until the session ends
  }
  delete mine;
}

void* Runner::Take(Stream stream, size_t bytes, Memory* from) {
  *from = memory;
  return from->take != nullptr ? from->take(from->context, stream, bytes) : pool.Take(stream, bytes);
}

void Runner::Give(const Memory& from, Stream stream, void* address) {
  if (address == nullptr) return;
  if (from.give != nullptr) {
    from.give(from.context, stream, address);
  } else {
    TheRunner().pool.Give(address);
  }
}

int Runner::Check(uint64_t expected) {
  if (generation == 0) return Fail(GEC_STATE, "no session has been opened in this process");
  if (ending) return Fail(GEC_STATE, "the session is ending");
  if (process != getpid()) {
    return Fail(GEC_STATE, "process " + std::to_string(getpid()) + " was forked from process " +
                               std::to_string(process) + ", to which the device belongs");
  }
  if (!open || expected != generation) return Fail(GEC_STATE, "the session has ended");
  if (device_set_for != generation) {
    const AclError code = Functions().set_device(device);
    if (code != 0) return FailDevice("aclrtSetDevice", code);
    device_set_for = generation;
  }
  return GEC_OK;
}

StreamState& Runner::On(Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto known = streams.find(stream);
  if (known != streams.end()) return *known->second;
  auto state = std::make_unique<StreamState>();
  state->allocator = std::make_shared<StreamAllocator>(stream);
  if (stream != nullptr && Functions().register_allocator != nullptr) {
    Functions().register_allocator(&session, stream, state->allocator);
  }
  return *streams.emplace(stream, std::move(state)).first->second;
}

Runner& TheRunner() {
  static Runner& runner = *new Runner;  // never destroyed: GE's threads may outlive static objects
  return runner;
}

}  // namespace cann

using cann::Fail;
using cann::FailDevice;
using cann::FailEngine;
using cann::Functions;
using cann::TheRunner;

extern "C" {

int gec_version(void) { return GEC_VERSION; }

const char* gec_error(void) { return cann::plain_error != nullptr ? cann::plain_error : cann::last_error.c_str(); }

int gec_open(gec_report report, void* context) {
  return cann::Guarded([&]() -> int {
    const cann::Alone alone;
    if (!alone && !TheRunner().forked()) return cann::Busy("CANN cannot be opened");
    cann::Runner& runner = TheRunner();
    const std::lock_guard<std::mutex> lock(runner.mutex);
    bool whole = true;
    std::string missing;
    for (const cann::Finding& found : cann::Open(Functions())) {
      if (found.required && !found.found) {
        whole = false;
        missing += std::string(missing.empty() ? "" : ", ") + (found.symbol != nullptr ? found.symbol : found.library);
      }
      if (report != nullptr) {
        report(context, found.library, found.symbol, found.purpose, found.required, found.found, found.detail.c_str());
      }
    }
    runner.libraries_open = whole;
    return whole ? GEC_OK : Fail(GEC_MISSING, missing);
  });
}

int gec_device_count(uint32_t* count) {
  return cann::Guarded([&]() -> int {
    *count = 0;
    if (Functions().device_count == nullptr) return Fail(GEC_MISSING, "aclrtGetDeviceCount");
    const cann::AclError code = Functions().device_count(count);
    return code == 0 ? GEC_OK : FailDevice("aclrtGetDeviceCount", code);
  });
}

int gec_session_open(int32_t device, const char* const* global_options, size_t n_global,
                     const char* const* session_options, size_t n_session) {
  return cann::Guarded([&]() -> int {
    const cann::Alone alone;
    if (!alone) return cann::Busy("a session cannot begin");
    cann::Runner& runner = TheRunner();
    const std::lock_guard<std::mutex> lock(runner.mutex);
    if (!runner.libraries_open) return Fail(GEC_MISSING, "CANN's libraries are not open");
    if (runner.open) {
      return Fail(GEC_STATE, "a session is open already, on device " + std::to_string(runner.device));
    }
    cann::Options global = cann::Pairs(global_options, n_global);
    cann::Options session = cann::Pairs(session_options, n_session);
    global.emplace("ge.exec.deviceId", std::to_string(device));
    session.emplace("ge.session_device_id", std::to_string(device));
    cann::AclError code = Functions().init(nullptr);
    if (code != 0 && code != cann::kAclRepeatInitialize) return FailDevice("aclInit", code);
    const bool ours = code == 0;
    code = Functions().set_device(device);
    if (code != 0) {
      const int failed = FailDevice("aclrtSetDevice", code);
      if (ours) Functions().finalize();
      return failed;
    }
    const auto abandon = [&](int failed) {
      Functions().reset_device(device);
      if (ours) Functions().finalize();
      return failed;
    };
    const cann::Status status = Functions().ge_initialize(cann::Map(global));
    if (status != 0) return abandon(FailEngine("GEInitialize", status));
    runner.session = {};
    Functions().session_make(&runner.session, cann::Map(session));
    if (runner.session.id == 0) return abandon(FailEngine("opening a session", 0xFFFFFFFFU));
    runner.acl_is_ours = ours;
    runner.device = device;
    runner.process = getpid();
    runner.next_graph = 0;
    ++runner.generation;
    cann::device_set_for = runner.generation;
    runner.open = true;
    return GEC_OK;
  });
}

int gec_session_is_open(void) {
  return cann::Guarded([&]() -> int {
    const cann::Runner& runner = TheRunner();
    return runner.open && !runner.forked() ? 1 : 0;
  });
}

int gec_session_close(int shut_down) {
  return cann::Guarded([&]() -> int {
    cann::Runner& runner = TheRunner();
    if (runner.forked()) return runner.Check(0);
    runner.ending = true;  // calls that begin now are refused, or one after the other could keep us waiting
    const cann::Alone alone;
    runner.ending = false;
    if (!alone) return cann::Busy("a session cannot end");
    if (const int failed = runner.Check(runner.generation)) return failed;
    Functions().synchronize_device();
    std::map<cann::Stream, std::unique_ptr<cann::StreamState>> streams;
    {
      const std::lock_guard<std::mutex> lock(runner.mutex);
      runner.open = false;
      streams.swap(runner.streams);
    }
    int failed = GEC_OK;
    // one by one: releasing a graph calls the caller's functions, which may free others
    for (;;) {
      gec_graph* graph = nullptr;
      {
        const std::lock_guard<std::mutex> lock(runner.mutex);
        if (runner.graphs.empty()) break;
        graph = *runner.graphs.begin();
        runner.graphs.erase(runner.graphs.begin());
        runner.releasing = graph;
        runner.dropped = false;
      }
      const int given = cann::Guarded([&]() -> int {
        cann::ReleaseGraph(graph, true);
        return GEC_OK;
      });
      if (given != GEC_OK) failed = given;
      bool dropped = false;
      {
        const std::lock_guard<std::mutex> lock(runner.mutex);
        runner.releasing = nullptr;
        dropped = runner.dropped;
      }
      if (dropped) cann::DeleteGraph(graph);
    }
    for (auto& [stream, state] : streams) {
      const std::lock_guard<std::mutex> lock(state->mutex);
      cann::Runner::Give(runner.memory, stream, state->work);
    }
    Functions().session_end(&runner.session);
    const bool ours = runner.acl_is_ours && shut_down != 0;
    if (shut_down != 0) Functions().ge_finalize();
    runner.pool.Trim();
    if (ours) {
      runner.pool.Forget();
      Functions().reset_device(runner.device);
      Functions().finalize();
    }
    return failed;
  });
}

int gec_device_facts(char* chip, size_t chip_room, char* version, size_t version_room, int64_t* cube_cores,
                     int64_t* vector_cores) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    const cann::Runner& runner = TheRunner();
    const cann::Api& api = Functions();
    const char* name = api.soc_name != nullptr ? api.soc_name() : nullptr;
    std::snprintf(chip, chip_room, "%s", name != nullptr ? name : "");
    std::snprintf(version, version_room, "%s", "");
    char room[4096] = {};  // a text of 128 bytes, then fields that are of no interest here
    char package[] = "cann";
    if (api.version != nullptr && api.version(0, room) == 0) {
      std::snprintf(version, version_room, "%.127s", room);
    } else if (api.version_text != nullptr && api.version_text(package, room) == 0) {
      std::snprintf(version, version_room, "%.127s", room);
    }
    *cube_cores = *vector_cores = -1;
    if (api.capability != nullptr) {
      const auto device = static_cast<uint32_t>(runner.device);
      if (api.capability(device, 0, cube_cores) != 0) *cube_cores = -1;
      if (api.capability(device, 1, vector_cores) != 0) *vector_cores = -1;
    }
    return GEC_OK;
  });
}

int gec_use_allocator(gec_malloc take, gec_free give, void* context) {
  return cann::Guarded([&]() -> int {
    const cann::Alone alone;
    if (!alone) return cann::Busy("the allocator cannot change");
    cann::Runner& runner = TheRunner();
    const std::lock_guard<std::mutex> lock(runner.mutex);
    if ((take == nullptr) != (give == nullptr)) return Fail(GEC_ARGUMENT, "one of two allocator functions is null");
    if (runner.open && take != runner.memory.take) {
      return Fail(GEC_STATE, "the allocator cannot change while a session is open");
    }
    runner.memory = {take, give, context};
    return GEC_OK;
  });
}

int gec_stream_new(void** stream) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    cann::Runner& runner = TheRunner();
    if (const int failed = runner.Check(runner.generation)) return failed;
    const cann::AclError code = Functions().create_stream(stream);
    return code == 0 ? GEC_OK : FailDevice("aclrtCreateStream", code);
  });
}

int gec_stream_free(void* stream) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    cann::Runner& runner = TheRunner();
    if (const int failed = runner.Check(runner.generation)) return failed;
    Functions().synchronize_stream(stream);
    const cann::AclError code = Functions().destroy_stream(stream);
    return code == 0 ? GEC_OK : FailDevice("aclrtDestroyStream", code);
  });
}

int gec_stream_wait(void* stream) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    cann::Runner& runner = TheRunner();
    if (const int failed = runner.Check(runner.generation)) return failed;
    const cann::AclError code = Functions().synchronize_stream(stream);
    return code == 0 ? GEC_OK : FailDevice("aclrtSynchronizeStream", code);
  });
}

int gec_stream_idle(void* stream, int* idle) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    cann::Runner& runner = TheRunner();
    *idle = 0;
    if (const int failed = runner.Check(runner.generation)) return failed;
    if (Functions().query_stream == nullptr) return GEC_OK;
    int32_t status = 1;
    const cann::AclError code = Functions().query_stream(stream, &status);
    *idle = code == 0 && status == 0 ? 1 : 0;
    return code == 0 ? GEC_OK : FailDevice("aclrtStreamQuery", code);
  });
}

int gec_memory_new(void* stream, uint64_t bytes, void** address) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    cann::Runner& runner = TheRunner();
    *address = nullptr;
    if (const int failed = runner.Check(runner.generation)) return failed;
    *address = runner.pool.Take(stream, bytes);
    return *address != nullptr ? GEC_OK : Fail(GEC_MEMORY, runner.pool.why());
  });
}

int gec_memory_free(void* address) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    cann::Runner& runner = TheRunner();
    if (runner.forked() || runner.pool.Give(address)) return GEC_OK;
    return Fail(GEC_STATE, "this memory belongs to a session that has ended");
  });
}

int gec_copy(void* to, const void* from, uint64_t bytes, int kind, void* stream) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    cann::Runner& runner = TheRunner();
    if (const int failed = runner.Check(runner.generation)) return failed;
    if (bytes == 0) return GEC_OK;
    const cann::AclError code = Functions().memcpy_async(to, bytes, from, bytes, kind, stream);
    return code == 0 ? GEC_OK : FailDevice("aclrtMemcpyAsync", code);
  });
}

}  // extern "C"
