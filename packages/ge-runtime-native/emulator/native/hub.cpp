// The hub of a communicator: one thread a rank reads, the last contribution of a collective triggers the answers.
#include "hub.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace emu::hccl {
namespace {

struct Hello {
  uint32_t rank, ranks;
};

struct Message {
  Header header;
  std::string data;
};

std::string text_of(const std::string& what, uint32_t rank) { return what + " " + std::to_string(rank); }

class Hub {
 public:
  explicit Hub(uint32_t ranks) : sockets_(ranks, -1), given_(ranks), waits_(ranks, false) {}

  void run_rank(uint32_t rank, int socket) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      sockets_[rank] = socket;
    }
    for (;;) {
      Message message;
      if (!read_all(socket, &message.header, sizeof message.header, -1)) return gone(rank);
      message.data.resize(message.header.bytes);
      if (!read_all(socket, message.data.data(), message.data.size(), -1)) return gone(rank);
      if (message.header.kind == kBye) return;
      take(rank, std::move(message));
    }
  }

 private:
  void answer(uint32_t rank, uint32_t status, const std::string& data, bool says_who_is_missing = false) {
    const Answer head{status, says_who_is_missing ? 1u : 0u, data.size()};
    if (sockets_[rank] < 0) return;
    write_all(sockets_[rank], &head, sizeof head);
    write_all(sockets_[rank], data.data(), data.size());
  }

  void gone(uint32_t rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    sockets_[rank] = -1;
    if (broken_.empty()) broken_ = text_of("EI0006: connection lost: rank went away:", rank);
    for (uint32_t other = 0; other < sockets_.size(); ++other)
      if (waits_[other]) {
        waits_[other] = false;
        answer(other, kRemote, broken_);
      }
  }

  void take(uint32_t rank, Message message) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (message.header.kind == kMissing) return answer(rank, 0, missing(), true);
    if (!broken_.empty() && message.header.kind != kSend) return answer(rank, kRemote, broken_);
    if (message.header.kind == kSend) {
      mail_[{rank, message.header.peer}].push_back(std::move(message));
      return deliver(rank, message.header.peer);
    }
    waits_[rank] = true;
    if (message.header.kind == kReceive) {
      wanted_[{message.header.peer, rank}].push_back(std::move(message));
      return deliver(message.header.peer, rank);
    }
    given_[rank] = std::make_unique<Message>(std::move(message));
    for (auto& entry : given_)
      if (entry == nullptr) return;
    finish();
  }

  // Ranks that have not come to the collective which others wait in.
  std::string missing() const {
    std::string ranks;
    for (uint32_t r = 0; r < given_.size(); ++r)
      if (given_[r] == nullptr) ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(r);
    return ranks;
  }

  void deliver(uint32_t from, uint32_t to) {
    auto& mail = mail_[{from, to}];
    auto& wanted = wanted_[{from, to}];
    while (!mail.empty() && !wanted.empty()) {
      waits_[to] = false;
      answer(to, 0, mail.front().data);
      mail.pop_front();
      wanted.pop_front();
    }
  }

  void finish() {
    const uint32_t ranks = static_cast<uint32_t>(given_.size());
    const Header first = given_[0]->header;
    std::string problem;
    for (uint32_t r = 1; r < ranks && problem.empty(); ++r) {
      const Header& h = given_[r]->header;
      if (h.kind != first.kind)
        problem = std::string("rank 0 called ") + kNames[first.kind] + ", rank " + std::to_string(r) + " " + kNames[h.kind];
      else if (h.dtype != first.dtype || h.op != first.op || h.peer != first.peer)
        problem = std::string(kNames[h.kind]) + ": type, operation or root of " + text_of("rank 0 differ from those of rank", r);
      else if (h.bytes != first.bytes && h.kind != kAllToAll && h.kind != kBroadcast && h.kind != kScatter)
        problem = std::string(kNames[h.kind]) + ": rank 0 gave " + std::to_string(first.bytes) + " bytes, rank " +
                  std::to_string(r) + " " + std::to_string(h.bytes);
    }
    std::vector<std::string> results(ranks);
    if (problem.empty()) problem = compute(first, &results);
    for (uint32_t r = 0; r < ranks; ++r) {
      waits_[r] = false;
      answer(r, problem.empty() ? 0 : kParameter, problem.empty() ? results[r] : problem);
      given_[r].reset();
    }
  }

  // Gives what is wrong, or nothing.
  std::string compute(const Header& h, std::vector<std::string>* results) {
    const uint32_t ranks = static_cast<uint32_t>(given_.size());
    std::string all;
    if (h.kind == kAllReduce || h.kind == kReduce || h.kind == kReduceScatter) {
      all = given_[0]->data;
      for (uint32_t r = 1; r < ranks; ++r)
        if (!combine(h.dtype, h.op, &all, given_[r]->data)) return "reduction of this element type is not known";
    } else if (h.kind == kAllGather) {
      for (auto& entry : given_) all += entry->data;
    }
    if ((h.kind == kBroadcast || h.kind == kScatter || h.kind == kReduce) && h.peer >= ranks) return "no such root";
    for (uint32_t r = 0; r < ranks; ++r) {
      std::string& result = (*results)[r];
      switch (h.kind) {
        case kAllReduce: case kAllGather: result = all; break;
        case kReduce: if (r == h.peer) result = all; break;
        case kBroadcast: result = given_[h.peer]->data; break;
        case kReduceScatter: result = all.substr(all.size() / ranks * r, all.size() / ranks); break;
        case kScatter: {
          const std::string& whole = given_[h.peer]->data;
          result = whole.substr(whole.size() / ranks * r, whole.size() / ranks);
          break;
        }
        case kAllToAll: {  // each contribution: a size for every rank, then the pieces
          for (uint32_t from = 0; from < ranks; ++from) {
            const std::string& data = given_[from]->data;
            uint64_t size = 0, at = ranks * sizeof size;
            for (uint32_t to = 0; to <= r; ++to) {
              at += size;
              if (data.size() < (to + 1) * sizeof size) return "all-to-all: a message is too short";
              std::memcpy(&size, data.data() + to * sizeof size, sizeof size);
            }
            if (at + size > data.size()) return "all-to-all: a message is too short";
            result.append(data, at, size);
          }
          break;
        }
        default: break;
      }
    }
    return "";
  }

  std::mutex mutex_;
  std::vector<int> sockets_;
  std::vector<std::unique_ptr<Message>> given_;
  std::vector<bool> waits_;
  std::map<std::pair<uint32_t, uint32_t>, std::deque<Message>> mail_, wanted_;
  std::string broken_;
};

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return address;
}

}  // namespace

bool read_all(int socket, void* data, size_t size, int64_t ms) {
  auto* at = static_cast<char*>(data);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  while (size > 0) {
    if (ms >= 0) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
      pollfd waiting{socket, POLLIN, 0};
      const int ready = left > 0 ? poll(&waiting, 1, static_cast<int>(left)) : 0;
      if (ready == 0) return errno = ETIMEDOUT, false;
      if (ready < 0 && errno != EINTR) return false;
      if (ready < 0) continue;
    }
    const ssize_t got = read(socket, at, size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return errno = ECONNRESET, false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

bool write_all(int socket, const void* data, size_t size) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(socket, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

std::string fresh_path() {
  const char* base = std::getenv("TMPDIR");
  std::string folder = std::string(base != nullptr && std::strlen(base) < 60 ? base : "/tmp") + "/npu-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return "";  // 0700: nobody else reaches the socket
  return folder + "/hub";
}

bool listen_later(const std::string& path) {
  const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un address = address_of(path);
  if (server < 0) return false;
  mkdir(path.substr(0, path.rfind('/')).c_str(), 0700);  // gone if an earlier hub there has met all its ranks
  if (bind(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || listen(server, 64) != 0) {
    close(server);
    return false;
  }
  std::thread([server, path] {
    std::shared_ptr<Hub> hub;
    uint32_t ranks = 0, arrived = 0;
    std::vector<bool> seen;
    while (ranks == 0 || arrived < ranks) {
      const int rank_socket = accept4(server, nullptr, nullptr, SOCK_CLOEXEC);
      if (rank_socket < 0) break;
      Hello hello{};
      if (!read_all(rank_socket, &hello, sizeof hello, 10000) || hello.ranks == 0 || hello.ranks > 1024 ||
          (ranks != 0 && hello.ranks != ranks) || hello.rank >= hello.ranks) {
        close(rank_socket);
        continue;
      }
      if (hub == nullptr) {
        ranks = hello.ranks;
        seen.assign(ranks, false);
        hub = std::make_shared<Hub>(ranks);
      }
      if (seen[hello.rank]) {
        close(rank_socket);
        continue;
      }
      seen[hello.rank] = true;
      ++arrived;
      std::thread([hub, rank = hello.rank, rank_socket] { hub->run_rank(rank, rank_socket); }).detach();
    }
    close(server);
    unlink(path.c_str());
    rmdir(path.substr(0, path.rfind('/')).c_str());  // succeeds once the folder is empty
  }).detach();
  return true;
}

int connect_to(const std::string& path, uint32_t rank, uint32_t ranks, int64_t ms) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  const sockaddr_un address = address_of(path);
  do {
    const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0) return -1;
    if (connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      const Hello hello{rank, ranks};
      if (write_all(made, &hello, sizeof hello)) return made;
    }
    close(made);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (std::chrono::steady_clock::now() < end);
  return -1;
}

}  // namespace emu::hccl
