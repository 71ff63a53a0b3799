// Collectives between processes of one host. The process that makes the root information keeps a hub: every rank
// sends what it contributes over a socket, the hub combines and answers. Slow and simple; order and agreement between
// the ranks are checked, and a rank that goes away is noticed by all others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace emu::hccl {

enum Kind : uint32_t {
  kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter, kScatter, kAllToAll, kBarrier, kSend, kReceive, kBye,
  kMissing  // who is awaited? answered with a text, marked as such, besides what else is answered
};
inline constexpr const char* kNames[] = {"all-reduce", "broadcast", "reduce", "all-gather", "reduce-scatter", "scatter",
                                         "all-to-all", "barrier", "send", "receive", "bye"};

struct Header {
  uint32_t kind;
  uint32_t peer;   // root, or the other rank
  uint32_t dtype;
  uint32_t op;
  uint64_t bytes;  // that follow
};

struct Answer {
  uint32_t status;  // 0, or an HcclResult; then the bytes are a text
  uint32_t says_who_is_missing;  // 1: an answer to kMissing
  uint64_t bytes;
};

inline constexpr uint32_t kParameter = 1;
inline constexpr uint32_t kInternal = 4;
inline constexpr uint32_t kTimeout = 9;
inline constexpr uint32_t kRemote = 21;

size_t item_size(uint32_t dtype);
// `into` op= `from`, elementwise. False for a type or operation that is not known.
bool combine(uint32_t dtype, uint32_t op, std::string* into, const std::string& from);

// All of it, or false at the end of the stream or after `ms` (negative: no limit).
bool read_all(int socket, void* data, size_t size, int64_t ms);
bool write_all(int socket, const void* data, size_t size);

// A new socket path in a folder of this user, not yet listened on.
std::string fresh_path();
// Listen there and serve ranks until all have gone, on threads of its own; the first rank says how many there are.
bool listen_later(const std::string& path);
int connect_to(const std::string& path, uint32_t rank, uint32_t ranks, int64_t ms);

}  // namespace emu::hccl
