// Declarations of our own for the part of the ACL interface that the emulator offers: names, numbers and layouts only.
#pragma once

#include <cstddef>
#include <cstdint>

using aclError = int;
using aclrtStream = void*;
using aclrtEvent = void*;
using aclrtContext = void*;
using aclmdlRI = void*;

#define EMU_API extern "C" __attribute__((visibility("default")))

namespace acl {

// Error numbers.
inline constexpr aclError kOk = 0;
inline constexpr aclError kInvalidParam = 100000;
inline constexpr aclError kUninitialised = 100001;
inline constexpr aclError kRepeatInitialise = 100002;
inline constexpr aclError kOpNotFound = 100024;
inline constexpr aclError kInternal = 500000;
inline constexpr aclError kRtParam = 107000;
inline constexpr aclError kRtDevice = 107001;
inline constexpr aclError kRtNoContext = 107002;
inline constexpr aclError kRtStreamContext = 107003;
inline constexpr aclError kRtEventUnrecorded = 107006;
inline constexpr aclError kRtMemoryType = 107016;
inline constexpr aclError kRtHandle = 107017;
inline constexpr aclError kRtWaitTimeout = 107019;
inline constexpr aclError kRtCaptureUnjoined = 107025;
inline constexpr aclError kRtCaptureNotCapturing = 107027;
inline constexpr aclError kRtCaptureEvent = 107028;
inline constexpr aclError kRtCaptureForbidden = 107030;
inline constexpr aclError kRtCaptureImplicit = 107031;
inline constexpr aclError kRtCaptureStream = 107036;
inline constexpr aclError kRtCaptureRunning = 107037;
inline constexpr aclError kRtCaptureThread = 107038;
inline constexpr aclError kRtUnsupported = 207000;
inline constexpr aclError kRtQueueEmpty = 207018;
inline constexpr aclError kRtOutOfMemory = 207001;
inline constexpr aclError kRtKernelFailed = 507015;
inline constexpr aclError kRtStreamTimeout = 507046;
inline constexpr aclError kRtDeviceTimeout = 507047;
inline constexpr aclError kRtCaptureInvalidated = 507903;

// aclDataType numbers that need naming here.
inline constexpr int kUndefined = -1;
inline constexpr int kFloat = 0;
inline constexpr int kInt4 = 29;

// aclMemType of a single operator's input.
inline constexpr int kDeviceMemory = 0;
inline constexpr int kHostConstant = 1;
inline constexpr int kHostValue = 2;

// aclrtMemcpyKind.
inline constexpr int kHostToHost = 0;
inline constexpr int kHostToDevice = 1;
inline constexpr int kDeviceToHost = 2;
inline constexpr int kDeviceToDevice = 3;

// Bytes of an element; 0 for a type without fixed size, halves of a byte are rounded up by `bytes_of`.
size_t bits_of(int dtype);
inline size_t bytes_of(int dtype, size_t elements) { return (bits_of(dtype) * elements + 7) / 8; }

}  // namespace acl
