// Device memory: host memory that is accounted for, so that foreign and freed pointers are noticed.
#pragma once

#include "acl.h"

namespace emu {

enum class MemoryKind { kDevice, kPinned };

// Bytes from `address` to the end of its block of that kind; 0 if it lies in none.
size_t room_at(const void* address, MemoryKind kind);
// 0, or a refusal that names the call and what the address should have been. Nothing is asked of zero bytes.
aclError need_device(const char* call, const char* what, const void* address, size_t bytes);

// Count `bytes` against the device's limit; out of memory is refused. `release` gives them back.
aclError account(int device, size_t bytes);
void release(int device, size_t bytes);
void enter_block(void* address, size_t bytes, int device, MemoryKind kind);
bool drop_block(void* address, MemoryKind kind, size_t* bytes, int* device);

}  // namespace emu
