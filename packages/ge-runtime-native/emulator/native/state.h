// What the whole emulated host shares: settings, the error text and the context of a thread.
#pragma once

#include <cstdint>
#include <string>

#include "acl.h"

namespace emu {

// Read once from TAIR_EMULATOR_*.
struct Settings {
  uint32_t devices = 1;
  std::string chip = "Ascend910B1";
  std::string cann = "8.5.0";
  size_t memory = size_t{64} << 30;  // bytes a device; pages are only used when touched
  int64_t cube_cores = -1;  // by the chip's name; -1 is not known
  int64_t vector_cores = -1;
  bool fill = false;  // fresh device memory holds 0xA5 instead of what the system gives
};
const Settings& settings();

// Remember an error text for this thread and give the code back. `format` as for printf.
aclError fail(aclError code, const char* format, ...) __attribute__((format(printf, 2, 3)));
void set_error_text(const std::string& text);
// The text since the last call, then nothing: what aclGetRecentErrMsg does.
const char* take_error_text();
std::string peek_error_text();

struct Context {
  int device;
};
// The context of this thread; null if none was set.
Context* current_context();
void set_context(Context* wanted);
// Remember which process this is: `refuse_in_fork` tells a child of it.
void note_process();

// The device of this thread; -1 if none was set.
int current_device();
// 0, or the code for a thread without context.
aclError need_context(const char* call);
// In a forked child there are no streams: every call that needs one is refused.
aclError refuse_in_fork(const char* call);

// Log one line to standard error if TAIR_EMULATOR_LOG is set.
void log(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace emu
