// Calls into Python. The interpreter's functions are looked up by name in the process; a process without Python gets
// one from the library that TAIR_EMULATOR_LIBPYTHON names.
#include "bridge.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>

#include "state.h"

namespace emu::bridge {
namespace {

using Callback = int64_t (*)(const char*, const void*, size_t, const int64_t*, size_t);

struct Python {
  int (*initialised)() = nullptr;
  int (*finalising)() = nullptr;
  int (*lock_held)() = nullptr;
  int (*ensure)() = nullptr;
  void (*release)(int) = nullptr;
  void* (*save)() = nullptr;
  void (*restore)(void*) = nullptr;
  void* (*thread_state)() = nullptr;
  void* (*import)(const char*) = nullptr;
  void (*print)() = nullptr;
  void (*initialise)(int) = nullptr;
  bool complete = false;
};

template <typename F>
bool find(void* handle, const char* name, F* target) {
  *target = reinterpret_cast<F>(dlsym(handle, name));
  return *target != nullptr;
}

Python look_up(void* handle) {
  Python p;
  p.complete = find(handle, "Py_IsInitialized", &p.initialised) && find(handle, "PyGILState_Check", &p.lock_held) &&
               find(handle, "PyGILState_Ensure", &p.ensure) && find(handle, "PyGILState_Release", &p.release) &&
               find(handle, "PyEval_SaveThread", &p.save) && find(handle, "PyEval_RestoreThread", &p.restore) &&
               find(handle, "PyImport_ImportModule", &p.import) && find(handle, "PyErr_Print", &p.print) &&
               find(handle, "Py_InitializeEx", &p.initialise) &&
               find(handle, "PyGILState_GetThisThreadState", &p.thread_state);
  if (!find(handle, "Py_IsFinalizing", &p.finalising)) find(handle, "_Py_IsFinalizing", &p.finalising);
  return p;
}

Python* found_python() {
  static auto* python = new Python(look_up(RTLD_DEFAULT));
  return python->complete ? python : nullptr;
}

std::mutex start_mutex;
Python* embedded = nullptr;
Callback callback = nullptr;  // set by TairEmulatorRegister, never unset

Python* running_python() {
  Python* p = embedded != nullptr ? embedded : found_python();
  return p != nullptr && p->initialised() ? p : nullptr;
}

bool ending(Python* p) { return p->finalising != nullptr && p->finalising(); }

// Start an interpreter in a process that has none; gives the reason if it cannot.
std::string embed() {
  std::lock_guard<std::mutex> lock(start_mutex);
  if (running_python() != nullptr) return "";
  Python* p = found_python();
  if (p == nullptr) {
    const char* name = std::getenv("TAIR_EMULATOR_LIBPYTHON");
    if (name == nullptr || *name == 0)
      return "this process has no Python, which holds the kernels; set TAIR_EMULATOR_LIBPYTHON to a libpython";
    void* handle = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (handle == nullptr) return std::string("libpython cannot be opened: ") + dlerror();
    p = new Python(look_up(handle));
    if (!p->complete) return std::string(name) + " is not a libpython";
  }
  p->initialise(0);
  p->save();
  embedded = p;
  return "";
}

std::string start(Python* p) {
  if (callback != nullptr) return "";
  const int state = p->ensure();
  void* module = p->import("ge_emulator.device");
  if (module == nullptr) p->print();
  p->release(state);
  if (module == nullptr) return "Python cannot import ge_emulator.device (its traceback is on standard error)";
  return callback == nullptr ? "ge_emulator.device did not register itself with this library" : "";
}

thread_local std::string reply;
thread_local aclError reply_error = 0;
thread_local bool adopted = false;  // this thread's Python state was made here, so it is no thread of Python's

Answer failed(const std::string& why) {
  Answer answer;
  answer.error = fail(acl::kInternal, "%s", why.c_str());
  return answer;
}

}  // namespace

Answer call(const char* verb, const void* data, size_t size, const std::vector<int64_t>& words) {
  Python* p = running_python();
  if (p == nullptr) {
    if (std::string why = embed(); !why.empty()) return failed(why);
    p = running_python();
  }
  if (ending(p)) return failed("Python is shutting down; no kernel can run any more");
  if (std::string why = start(p); !why.empty()) return failed(why);
  if (p->thread_state() == nullptr) {  // a native thread's first call: keep its state, making one for each call is slow
    p->ensure();
    p->save();
    adopted = true;
  }
  reply.clear();
  reply_error = 0;
  Answer answer;
  answer.value = callback(verb, data, size, words.data(), words.size());
  answer.reply.swap(reply);
  answer.error = reply_error;
  if (answer.value < 0 && answer.error == 0) answer.error = acl::kInternal;
  return answer;
}

bool may_wait() {
  Python* p = running_python();
  if (p == nullptr || embedded != nullptr) return true;
  return !ending(p) && !adopted && p->thread_state() != nullptr;
}

void start_if_python() {
  Python* p = running_python();
  if (p != nullptr && p->lock_held() && !ending(p)) start(p);
}

GilReleased::GilReleased() {
  Python* p = running_python();
  if (p != nullptr && !ending(p) && p->lock_held()) state_ = p->save();
}

GilReleased::~GilReleased() {
  if (state_ != nullptr) running_python()->restore(state_);
}

}  // namespace emu::bridge

// What the Python side calls back.

EMU_API void TairEmulatorRegister(emu::bridge::Callback callback) { emu::bridge::callback = callback; }

EMU_API void TairEmulatorReply(const char* bytes, size_t size) { emu::bridge::reply.assign(bytes, size); }

EMU_API void TairEmulatorError(aclError code, const char* text) {
  emu::bridge::reply_error = emu::fail(code, "%s", text);
}
