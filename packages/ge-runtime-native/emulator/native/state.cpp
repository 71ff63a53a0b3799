// Settings, error texts, and the context of a thread.
#include "state.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "chips.h"

namespace acl {

size_t bits_of(int dtype) {
  switch (dtype) {
    case 2: case 4: case 12: case 34: case 35: case 36: case 37: return 8;
    case 1: case 6: case 7: case 27: return 16;
    case 0: case 3: case 8: case 33: return 32;
    case 9: case 10: case 11: case 16: return 64;
    case 17: return 128;
    case 29: case 40: case 41: return 4;
    case 30: return 1;
    case 38: case 39: return 6;
    default: return 0;
  }
}

}  // namespace acl

namespace emu {
namespace {

thread_local std::string error_text;
thread_local std::string given_text;  // what the last aclGetRecentErrMsg returned must stay readable
thread_local Context* context = nullptr;

size_t bytes_from(const char* text, size_t otherwise) {
  if (text == nullptr || *text == 0) return otherwise;
  char* end = nullptr;
  double number = std::strtod(text, &end);
  if (end == text || number <= 0) return otherwise;
  switch (*end) {
    case 'k': case 'K': return static_cast<size_t>(number * 1024);
    case 'm': case 'M': return static_cast<size_t>(number * 1048576);
    case 'g': case 'G': return static_cast<size_t>(number * 1073741824);
    default: return static_cast<size_t>(number);
  }
}

Settings read_settings() {
  Settings s;
  if (const char* v = std::getenv("TAIR_EMULATOR_DEVICES")) s.devices = static_cast<uint32_t>(std::atoi(v));
  if (const char* v = std::getenv("TAIR_EMULATOR_CHIP"); v != nullptr && *v != 0) s.chip = v;
  if (const char* v = std::getenv("TAIR_EMULATOR_CANN")) s.cann = v;
  s.memory = bytes_from(std::getenv("TAIR_EMULATOR_MEMORY"), s.memory);
  s.fill = std::getenv("TAIR_EMULATOR_FILL") != nullptr;
  for (const Chip& chip : kChips)
    if (s.chip == chip.name) s.cube_cores = chip.cube_cores, s.vector_cores = chip.vector_cores;
  return s;
}

bool forked = false;
pid_t owner = 0;

}  // namespace

const Settings& settings() {
  static const auto* read = new Settings(read_settings());
  return *read;
}

aclError fail(aclError code, const char* format, ...) {
  char text[4096];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  set_error_text("EZ9999: [emulator] " + std::to_string(code) + ": " + text);
  log("error %d: %s", code, text);
  return code;
}

void set_error_text(const std::string& text) {
  if (!error_text.empty()) error_text += "\n";
  error_text += text;
}

const char* take_error_text() {
  given_text.swap(error_text);
  error_text.clear();
  return given_text.c_str();
}

std::string peek_error_text() { return error_text; }

Context* current_context() { return context; }

void set_context(Context* wanted) { context = wanted; }

void note_process() {
  static std::once_flag once;
  std::call_once(once, [] {
    owner = getpid();
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
  });
}

int current_device() { return context == nullptr ? -1 : context->device; }

aclError need_context(const char* call) {
  if (context == nullptr) return fail(acl::kRtNoContext, "%s: this thread has no context; call aclrtSetDevice", call);
  return refuse_in_fork(call);
}

aclError refuse_in_fork(const char* call) {
  if (!forked) return acl::kOk;
  return fail(acl::kRtNoContext, "%s: this process was forked from %d, which holds the device; use spawn", call, owner);
}

void log(const char* format, ...) {
  static const bool wanted = std::getenv("TAIR_EMULATOR_LOG") != nullptr;
  if (!wanted) return;
  char text[4096];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  std::fprintf(stderr, "[emulator %d] %s\n", getpid(), text);
}

}  // namespace emu
