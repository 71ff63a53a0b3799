// Device memory that is kept for later requests, by stream: what one run frees, the next one on that stream may take
// without waiting, because the stream keeps their order.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cann_abi.h"

namespace cann {

class Pool {
 public:
  // Null if the device has no memory left, even after everything kept was given back; why() then says more.
  void* Take(Stream stream, size_t bytes);
  // False if the address is not one of the pool's.
  bool Give(void* address);
  // Returns everything that is kept to the device; blocks in use stay.
  void Trim();
  // Forgets everything, for a device that has gone.
  void Forget();
  size_t used() const;
  std::string why() const;

 private:
  struct Block {
    Stream stream;
    size_t bytes;
  };
  void TrimLocked();

  mutable std::mutex mutex_;
  std::map<std::pair<Stream, size_t>, std::vector<void*>> kept_;
  std::unordered_map<void*, Block> blocks_;  // in use
  size_t used_ = 0;
  std::string why_;
};

}  // namespace cann
