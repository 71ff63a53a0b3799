// libhccl: communicators and collectives, on streams.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "bridge.h"
#include "hub.h"
#include "memory.h"
#include "state.h"
#include "stream.h"

extern "C" const char* aclGetRecentErrMsg();

namespace emu::hccl {
namespace {

constexpr size_t kRootInfoBytes = 4108;
constexpr aclError kCollectiveFailed = 507899;
constexpr int64_t kHubAnswersMs = 2000;

int64_t milliseconds(const char* variable, int64_t seconds) {
  const char* text = std::getenv(variable);
  const long long given = text == nullptr ? 0 : std::atoll(text);
  return (given > 0 ? given : seconds) * 1000;
}

struct Comm {
  std::string path, name;
  uint32_t rank = 0, ranks = 0;
  int socket = -1;
  std::mutex mutex;  // one exchange at a time
  std::mutex state;
  uint32_t error = 0;

  void failed(uint32_t code) {
    std::lock_guard<std::mutex> lock(state);
    if (error == 0) error = code;
  }
  ~Comm() {
    const Header bye{kBye, 0, 0, 0, 0};
    if (socket < 0) return;
    write_all(socket, &bye, sizeof bye);
    close(socket);
  }
};

struct Book {
  std::mutex mutex;
  std::map<void*, std::shared_ptr<Comm>> live;
};

Book& book() {
  static auto* made = new Book;
  return *made;
}

std::shared_ptr<Comm> find_named(const std::string& name) {
  auto& b = book();
  std::lock_guard<std::mutex> lock(b.mutex);
  for (const auto& entry : b.live)
    if (entry.second->name == name) return entry.second;
  return nullptr;
}

std::shared_ptr<Comm> find(void* handle) {
  auto& b = book();
  std::lock_guard<std::mutex> lock(b.mutex);
  auto found = b.live.find(handle);
  return found == b.live.end() ? nullptr : found->second;
}

uint32_t refuse(uint32_t code, const std::string& text) {
  fail(kCollectiveFailed, "%s", text.c_str());
  return code;
}

// What the hub knows of the ranks that are awaited, after a wait has ended; a late answer to the wait is passed over.
std::string missing_ranks(int socket, const Header& waits) {
  if (waits.kind == kReceive) return "rank " + std::to_string(waits.peer) + " sends nothing";
  const std::string silent = "another rank does not call it";
  const Header question{kMissing, 0, 0, 0, 0};
  if (!write_all(socket, &question, sizeof question)) return silent;
  for (;;) {
    Answer answer{};
    std::string text;
    if (!read_all(socket, &answer, sizeof answer, kHubAnswersMs)) return silent + ": the process of rank 0, which holds the hub, does not answer";
    text.resize(answer.bytes);
    if (!read_all(socket, text.data(), text.size(), kHubAnswersMs)) return silent;
    if (answer.says_who_is_missing == 1) return text.empty() ? "it came too late" : text + " does not call it";
  }
}

// Send a contribution, read the answer. Runs on the stream's thread.
aclError exchange(const std::shared_ptr<Comm>& comm, Header header, const std::string& data, std::string* result) {
  header.bytes = data.size();
  std::lock_guard<std::mutex> lock(comm->mutex);
  auto broken = [&](uint32_t code, const std::string& text) {
    comm->failed(code);
    return fail(kCollectiveFailed, "%s of rank %u in %s: %s", kNames[header.kind], comm->rank, comm->name.c_str(), text.c_str());
  };
  if (comm->error != 0) return broken(comm->error, "the communicator failed before");
  if (!write_all(comm->socket, &header, sizeof header) || !write_all(comm->socket, data.data(), data.size()))
    return broken(kRemote, "EI0006: connection lost");
  if (header.kind == kSend) return acl::kOk;
  Answer answer{};
  const int64_t limit = milliseconds("HCCL_EXEC_TIMEOUT", 1836);
  if (!read_all(comm->socket, &answer, sizeof answer, limit))
    return errno == ETIMEDOUT ? broken(kTimeout, "EI0002: no answer within HCCL_EXEC_TIMEOUT, " +
                                       std::to_string(limit / 1000) + " s: " + missing_ranks(comm->socket, header))
                              : broken(kRemote, "EI0006: connection lost: rank went away: 0, whose process holds the hub");
  result->resize(answer.bytes);
  if (!read_all(comm->socket, result->data(), result->size(), limit)) return broken(kRemote, "EI0006: connection lost");
  return answer.status == 0 ? acl::kOk : broken(answer.status, *result);
}

// A collective on a stream: `from` bytes of `send` go out, the answer goes to `receive`, which has `to` bytes.
uint32_t launch(void* handle, aclrtStream stream, Header header, const void* send, size_t from, void* receive, size_t to) {
  auto comm = find(handle);
  if (comm == nullptr) return refuse(kParameter, std::string(kNames[header.kind]) + ": no such communicator");
  if (need_device(kNames[header.kind], "send buffer", send, from) != acl::kOk) return kParameter;
  if (need_device(kNames[header.kind], "receive buffer", receive, to) != acl::kOk) return kParameter;
  const aclError code = submit(stream, kNames[header.kind], [=]() -> aclError {
    std::string result;
    const std::string data(static_cast<const char*>(send), send == nullptr ? 0 : from);
    if (aclError failed = exchange(comm, header, data, &result)) return failed;
    if (result.size() > to)
      return fail(kCollectiveFailed, "%s: %zu bytes for room of %zu", kNames[header.kind], result.size(), to);
    std::memcpy(receive, result.data(), result.size());
    return acl::kOk;
  });
  return code == acl::kOk ? 0 : kInternal;
}

uint32_t open(const std::string& path, uint32_t ranks, uint32_t rank, void** handle) {
  if (handle == nullptr || ranks == 0 || rank >= ranks) return refuse(kParameter, "communicator: bad rank or null result");
  auto comm = std::make_shared<Comm>();
  comm->path = path;
  comm->rank = rank;
  comm->ranks = ranks;
  comm->name = path.substr(path.find("npu-") == std::string::npos ? 0 : path.find("npu-"));
  bridge::GilReleased released;
  comm->socket = connect_to(path, rank, ranks, milliseconds("HCCL_CONNECT_TIMEOUT", 120));
  if (comm->socket < 0) return refuse(kTimeout, "EI0006: rank " + std::to_string(rank) + " cannot reach the root within HCCL_CONNECT_TIMEOUT");
  std::string nothing;
  if (exchange(comm, {kBarrier, 0, 0, 0, 0}, "", &nothing) != acl::kOk) return kRemote;  // until all are there
  auto& b = book();
  std::lock_guard<std::mutex> lock(b.mutex);
  b.live[comm.get()] = comm;
  *handle = comm.get();
  return 0;
}

}  // namespace
}  // namespace emu::hccl

using namespace emu::hccl;
using emu::fail;

EMU_API uint32_t HcclSetConfig(int, int) { return 0; }
EMU_API uint32_t HcclGetCommConfigCapability() { return 0; }

EMU_API uint32_t HcclGetRootInfo(void* info) {
  if (info == nullptr) return kParameter;
  const std::string path = fresh_path();
  if (path.empty() || !listen_later(path)) return refuse(kInternal, "HcclGetRootInfo: no socket can be made");
  std::memset(info, 0, kRootInfoBytes);
  std::memcpy(info, path.c_str(), path.size());
  return 0;
}

EMU_API uint32_t HcclCommInitRootInfo(uint32_t ranks, const void* info, uint32_t rank, void** comm) {
  if (info == nullptr) return kParameter;
  const auto* text = static_cast<const char*>(info);
  return open(std::string(text, strnlen(text, 107)), ranks, rank, comm);
}

EMU_API uint32_t HcclCommInitRootInfoConfig(uint32_t ranks, const void* info, uint32_t rank, const void*, void** comm) {
  return HcclCommInitRootInfo(ranks, info, rank, comm);
}

EMU_API uint32_t HcclCreateSubCommConfig(void** parent, uint32_t ranks, uint32_t* ids, uint64_t id, uint32_t rank,
                                         void*, void** made) {
  auto whole = parent == nullptr ? nullptr : find(*parent);
  if (whole == nullptr) return refuse(kParameter, "HcclCreateSubCommConfig: no such communicator");
  if (ids == nullptr || made == nullptr) return 0;  // this rank does not belong to it
  const std::string path = whole->path + "." + std::to_string(id) + "." + std::to_string(ids[0]);
  if (rank == 0 && !listen_later(path)) return refuse(kInternal, "HcclCreateSubCommConfig: no socket can be made");
  return open(path, ranks, rank, made);
}

EMU_API uint32_t HcclCommDestroy(void* handle) {
  std::shared_ptr<Comm> gone = find(handle);
  if (gone == nullptr) return kParameter;
  auto& b = book();
  std::lock_guard<std::mutex> lock(b.mutex);
  b.live.erase(handle);
  return 0;
}

EMU_API uint32_t HcclGetRankSize(void* handle, uint32_t* ranks) {
  auto comm = find(handle);
  return comm == nullptr || ranks == nullptr ? kParameter : (*ranks = comm->ranks, 0);
}
EMU_API uint32_t HcclGetRankId(void* handle, uint32_t* rank) {
  auto comm = find(handle);
  return comm == nullptr || rank == nullptr ? kParameter : (*rank = comm->rank, 0);
}
EMU_API uint32_t HcclGetCommName(void* handle, char* name) {
  auto comm = find(handle);
  if (comm == nullptr || name == nullptr) return kParameter;
  std::strncpy(name, comm->name.c_str(), 127);
  return name[127] = 0, 0;
}
EMU_API uint32_t HcclGetCommAsyncError(void* handle, uint32_t* error) {
  auto comm = find(handle);
  if (comm == nullptr || error == nullptr) return kParameter;
  std::lock_guard<std::mutex> lock(comm->state);
  return *error = comm->error, 0;
}
EMU_API const char* HcclGetErrorString(uint32_t code) {
  switch (code) {
    case 0: return "success";
    case kParameter: return "parameter error";
    case kTimeout: return "timeout";
    case kRemote: return "remote error: a rank went away";
    default: return "internal error";
  }
}

EMU_API uint32_t HcclAllReduce(void* send, void* receive, uint64_t count, uint32_t type, uint32_t op, void* comm, aclrtStream s) {
  const size_t bytes = count * item_size(type);
  return launch(comm, s, {kAllReduce, 0, type, op, 0}, send, bytes, receive, bytes);
}
EMU_API uint32_t HcclBroadcast(void* data, uint64_t count, uint32_t type, uint32_t root, void* handle, aclrtStream s) {
  auto comm = find(handle);
  const size_t bytes = count * item_size(type);
  const bool own = comm != nullptr && comm->rank == root;
  return launch(handle, s, {kBroadcast, root, type, 0, 0}, own ? data : nullptr, own ? bytes : 0, data, bytes);
}
EMU_API uint32_t HcclReduce(void* send, void* receive, uint64_t count, uint32_t type, uint32_t op, uint32_t root, void* handle, aclrtStream s) {
  auto comm = find(handle);
  const size_t bytes = count * item_size(type);
  const bool own = comm != nullptr && comm->rank == root;
  return launch(handle, s, {kReduce, root, type, op, 0}, send, bytes, own ? receive : nullptr, own ? bytes : 0);
}
EMU_API uint32_t HcclAllGather(void* send, void* receive, uint64_t count, uint32_t type, void* handle, aclrtStream s) {
  auto comm = find(handle);
  const size_t bytes = count * item_size(type);
  return launch(handle, s, {kAllGather, 0, type, 0, 0}, send, bytes, receive, comm == nullptr ? 0 : bytes * comm->ranks);
}
EMU_API uint32_t HcclReduceScatter(void* send, void* receive, uint64_t count, uint32_t type, uint32_t op, void* handle, aclrtStream s) {
  auto comm = find(handle);
  const size_t bytes = count * item_size(type);
  return launch(handle, s, {kReduceScatter, 0, type, op, 0}, send, comm == nullptr ? 0 : bytes * comm->ranks, receive, bytes);
}
EMU_API uint32_t HcclScatter(void* send, void* receive, uint64_t count, uint32_t type, uint32_t root, void* handle, aclrtStream s) {
  auto comm = find(handle);
  const size_t bytes = count * item_size(type);
  const bool own = comm != nullptr && comm->rank == root;
  return launch(handle, s, {kScatter, root, type, 0, 0}, own ? send : nullptr, own ? bytes * comm->ranks : 0, receive, bytes);
}
EMU_API uint32_t HcclBarrier(void* comm, aclrtStream s) {
  return launch(comm, s, {kBarrier, 0, 0, 0, 0}, nullptr, 0, nullptr, 0);
}
EMU_API uint32_t HcclSend(void* data, uint64_t count, uint32_t type, uint32_t to, void* comm, aclrtStream s) {
  return launch(comm, s, {kSend, to, type, 0, 0}, data, count * item_size(type), nullptr, 0);
}
EMU_API uint32_t HcclRecv(void* data, uint64_t count, uint32_t type, uint32_t from, void* comm, aclrtStream s) {
  return launch(comm, s, {kReceive, from, type, 0, 0}, nullptr, 0, data, count * item_size(type));
}

EMU_API uint32_t HcclAlltoAllV(const void* send, const void* send_counts, const void* send_starts, uint32_t send_type,
                               const void* receive, const void* receive_counts, const void* receive_starts,
                               uint32_t receive_type, void* handle, aclrtStream s) {
  auto comm = find(handle);
  if (comm == nullptr) return refuse(kParameter, "all-to-all: no such communicator");
  auto numbers = [&](const void* data) {
    const auto* first = static_cast<const uint64_t*>(data);
    return std::vector<uint64_t>(first, first + comm->ranks);
  };
  const auto counts = numbers(send_counts), starts = numbers(send_starts);
  const auto places = numbers(receive_starts), sizes = numbers(receive_counts);
  const size_t out = item_size(send_type), in = item_size(receive_type);
  const aclError code = emu::submit(s, "all-to-all", [=]() -> aclError {
    std::string data, result;
    for (uint64_t count : counts) {
      const uint64_t bytes = count * out;
      data.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
    }
    for (size_t r = 0; r < counts.size(); ++r)
      if (counts[r] > 0) data.append(static_cast<const char*>(send) + starts[r] * out, counts[r] * out);
    if (aclError failed = exchange(comm, {kAllToAll, 0, send_type, 0, 0}, data, &result)) return failed;
    size_t at = 0;
    for (size_t r = 0; r < sizes.size(); ++r) {
      const size_t bytes = sizes[r] * in;
      if (at + bytes > result.size()) return fail(kCollectiveFailed, "all-to-all: fewer bytes came than are expected");
      if (bytes > 0) std::memcpy(static_cast<char*>(const_cast<void*>(receive)) + places[r] * in, result.data() + at, bytes);
      at += bytes;
    }
    return acl::kOk;
  });
  return code == acl::kOk ? 0 : kInternal;
}

EMU_API uint32_t HcclAlltoAll(const void* send, uint64_t send_count, uint32_t send_type, const void* receive,
                              uint64_t receive_count, uint32_t receive_type, void* handle, aclrtStream s) {
  auto comm = find(handle);
  if (comm == nullptr) return refuse(kParameter, "all-to-all: no such communicator");
  std::vector<uint64_t> out(comm->ranks, send_count), in(comm->ranks, receive_count), from, to;
  for (uint32_t r = 0; r < comm->ranks; ++r) from.push_back(r * send_count), to.push_back(r * receive_count);
  return HcclAlltoAllV(send, out.data(), from.data(), send_type, receive, in.data(), to.data(), receive_type, handle, s);
}

struct HcclSendRecvItem {
  int type;  // 0 send, 1 receive
  void* data;
  uint64_t count;
  uint32_t dtype;
  uint32_t peer;
};

EMU_API uint32_t HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t count, void* comm, aclrtStream s) {
  for (int type : {0, 1})  // all sends first: a receive waits, a send does not
    for (uint32_t i = 0; i < count; ++i) {
      const auto& item = items[i];
      if (item.type != type) continue;
      const uint32_t code = type == 0 ? HcclSend(item.data, item.count, item.dtype, item.peer, comm, s)
                                      : HcclRecv(item.data, item.count, item.dtype, item.peer, comm, s);
      if (code != 0) return code;
    }
  return 0;
}

// For collectives inside GE graphs, whose kernels run on a stream's thread already.

EMU_API int TairEmulatorGroup(const char* name, uint32_t* rank, uint32_t* ranks) {
  auto comm = find_named(name);
  if (comm == nullptr) return 1;
  *rank = comm->rank;
  *ranks = comm->ranks;
  return 0;
}

EMU_API int TairEmulatorExchange(const char* name, uint32_t kind, uint32_t peer, uint32_t dtype, uint32_t op,
                                 const char* data, size_t size, char* into, size_t room, char* text, size_t text_room) {
  auto comm = find_named(name);
  std::string result;
  aclError code = kInternal;
  if (comm == nullptr) {
    result = std::string("no communicator ") + name;
  } else {
    code = exchange(comm, {kind, peer, dtype, op, 0}, std::string(data, size), &result);
    if (code == acl::kOk && result.size() == room) {
      std::memcpy(into, result.data(), room);
      return 0;
    }
    if (code == acl::kOk) {
      result = std::string(kNames[kind]) + ": " + std::to_string(result.size()) + " bytes for room of " + std::to_string(room);
    } else {
      result = std::string(kNames[kind]) + " of rank " + std::to_string(comm->rank) + ": " + aclGetRecentErrMsg();
    }
  }
  std::snprintf(text, text_room, "%s", result.c_str());
  return code == acl::kOk ? static_cast<int>(kInternal) : static_cast<int>(code);
}
