// Streams, events, memory, capture and collectives without Python: what sanitizers watch.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "acl.h"

extern "C" {
aclError aclInit(const char*);
aclError aclFinalize();
aclError aclrtSetDevice(int32_t);
aclError aclrtMalloc(void**, size_t, int);
aclError aclrtFree(void*);
aclError aclrtMallocHost(void**, size_t);
aclError aclrtFreeHost(void*);
aclError aclrtGetMemInfo(int, size_t*, size_t*);
aclError aclrtMemcpy(void*, size_t, const void*, size_t, int);
aclError aclrtMemcpyAsync(void*, size_t, const void*, size_t, int, aclrtStream);
aclError aclrtMemsetAsync(void*, size_t, int32_t, size_t, aclrtStream);
aclError aclrtCreateStream(aclrtStream*);
aclError aclrtDestroyStream(aclrtStream);
aclError aclrtSynchronizeStream(aclrtStream);
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream, int32_t);
aclError aclrtSynchronizeDevice();
aclError aclrtLaunchHostFunc(aclrtStream, void (*)(void*), void*);
aclError aclrtCreateEvent(aclrtEvent*);
aclError aclrtDestroyEvent(aclrtEvent);
aclError aclrtRecordEvent(aclrtEvent, aclrtStream);
aclError aclrtStreamWaitEvent(aclrtStream, aclrtEvent);
aclError aclrtSynchronizeEvent(aclrtEvent);
aclError aclrtEventElapsedTime(float*, aclrtEvent, aclrtEvent);
aclError aclmdlRICaptureBegin(aclrtStream, int);
aclError aclmdlRICaptureEnd(aclrtStream, aclmdlRI*);
aclError aclmdlRIExecuteAsync(aclmdlRI, aclrtStream);
aclError aclmdlRIDestroy(aclmdlRI);
aclError aclrtMemset(void*, size_t, int32_t, size_t);
aclError aclrtValueWrite(void*, uint64_t, uint32_t, aclrtStream);
aclError aclrtValueWait(void*, uint64_t, uint32_t, aclrtStream);
aclError aclrtCreateEventExWithFlag(aclrtEvent*, uint32_t);
aclError aclrtResetEvent(aclrtEvent, aclrtStream);
aclError aclmdlRICaptureThreadExchangeMode(int*);
aclError aclmdlRICaptureTaskGrpBegin(aclrtStream);
aclError aclmdlRICaptureTaskGrpEnd(aclrtStream, void**);
aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream, void*);
aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream);
aclError aclrtReserveMemAddress(void**, size_t, size_t, void*, uint64_t);
aclError aclrtReleaseMemAddress(void*);
aclError aclrtMallocPhysical(void**, size_t, const void*, uint64_t);
aclError aclrtFreePhysical(void*);
aclError aclrtMapMem(void*, size_t, size_t, void*, uint64_t);
aclError aclrtUnmapMem(void*);
uint32_t HcclGetRootInfo(void*);
uint32_t HcclCommInitRootInfo(uint32_t, const void*, uint32_t, void**);
uint32_t HcclAllReduce(void*, void*, uint64_t, uint32_t, uint32_t, void*, aclrtStream);
uint32_t HcclCommDestroy(void*);
}

#define CHECK(condition)                                                    \
  do {                                                                      \
    if (!(condition)) {                                                     \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                         \
    }                                                                       \
  } while (0)

namespace {

struct Step {
  std::vector<int>* log;
  int number;
};
void note(void* data) {
  auto* step = static_cast<Step*>(data);
  step->log->push_back(step->number);
}

void order_within_a_stream() {
  aclrtStream stream;
  CHECK(aclrtCreateStream(&stream) == 0);
  std::vector<int> log;
  std::vector<Step> steps;
  for (int i = 0; i < 500; ++i) steps.push_back({&log, i});
  for (auto& step : steps) CHECK(aclrtLaunchHostFunc(stream, note, &step) == 0);
  CHECK(aclrtSynchronizeStream(stream) == 0);
  for (int i = 0; i < 500; ++i) CHECK(log[static_cast<size_t>(i)] == i);
  CHECK(aclrtDestroyStream(stream) == 0);
  CHECK(aclrtSynchronizeStream(stream) == acl::kRtHandle);
}

void events_order_two_streams() {
  aclrtStream a, b;
  aclrtEvent start, end;
  CHECK(aclrtCreateStream(&a) == 0 && aclrtCreateStream(&b) == 0);
  CHECK(aclrtCreateEvent(&start) == 0 && aclrtCreateEvent(&end) == 0);
  for (int round = 0; round < 50; ++round) {
    std::vector<int> log;
    Step first{&log, 1}, second{&log, 2};
    CHECK(aclrtLaunchHostFunc(a, note, &first) == 0);
    CHECK(aclrtRecordEvent(start, a) == 0);
    CHECK(aclrtStreamWaitEvent(b, start) == 0);
    CHECK(aclrtLaunchHostFunc(b, note, &second) == 0);
    CHECK(aclrtRecordEvent(end, b) == 0);
    CHECK(aclrtSynchronizeEvent(end) == 0);
    CHECK(log.size() == 2 && log[0] == 1 && log[1] == 2);
    float ms = -1;
    CHECK(aclrtEventElapsedTime(&ms, start, end) == 0 && ms >= 0);
  }
  CHECK(aclrtDestroyEvent(start) == 0 && aclrtDestroyEvent(end) == 0);
  CHECK(aclrtDestroyStream(a) == 0 && aclrtDestroyStream(b) == 0);
}

// A word of memory, and an external event, hold up a replay until a stream outside writes or records.
void replays_wait_for_others() {
  aclrtStream a, b;
  aclrtEvent event;
  void *word = nullptr, *data = nullptr;
  CHECK(aclrtCreateStream(&a) == 0 && aclrtCreateStream(&b) == 0 && aclrtCreateEventExWithFlag(&event, 0x20) == 0);
  CHECK(aclrtMalloc(&word, 64, 0) == 0 && aclrtMalloc(&data, 64, 0) == 0);
  CHECK(aclrtMemset(word, 64, 0, 64) == 0 && aclrtMemset(data, 64, 0, 64) == 0);
  for (bool by_event : {false, true}) {
    aclmdlRI model = nullptr;
    CHECK(aclmdlRICaptureBegin(a, 0) == 0);
    int mode = 2;  // a thread that asks for it may do what the capture forbids
    CHECK(aclmdlRICaptureThreadExchangeMode(&mode) == 0 && mode == 0);
    CHECK(aclrtMemset(data, 64, 0, 64) == 0);
    CHECK(aclmdlRICaptureThreadExchangeMode(&mode) == 0 && mode == 2);
    if (by_event) {
      CHECK(aclrtStreamWaitEvent(a, event) == 0 && aclrtResetEvent(event, a) == 0);
    } else {
      CHECK(aclrtValueWait(word, 1, 1, a) == 0 && aclrtValueWrite(word, 0, 0, a) == 0);
    }
    CHECK(aclrtMemsetAsync(data, 64, 7, 64, a) == 0);
    CHECK(aclmdlRICaptureEnd(a, &model) == 0 && model != nullptr);
    for (int round = 0; round < 3; ++round) {
      char back = 1;
      CHECK(aclrtMemset(data, 64, 0, 64) == 0 && aclmdlRIExecuteAsync(model, a) == 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      CHECK(aclrtMemcpy(&back, 1, data, 1, acl::kDeviceToHost) == 0 && back == 0);
      CHECK((by_event ? aclrtRecordEvent(event, b) : aclrtValueWrite(word, 1, 0, b)) == 0);
      CHECK(aclrtSynchronizeStream(a) == 0);
      CHECK(aclrtMemcpy(&back, 1, data, 1, acl::kDeviceToHost) == 0 && back == 7);
    }
    CHECK(aclmdlRIDestroy(model) == 0);
  }
  // the conditions: at least, equal, a bit in common, not all bits between them
  CHECK(aclrtValueWrite(word, 6, 0, b) == 0);
  CHECK(aclrtValueWait(word, 5, 0, b) == 0 && aclrtValueWait(word, 6, 1, b) == 0);
  CHECK(aclrtValueWait(word, 2, 2, b) == 0 && aclrtValueWait(word, 1, 3, b) == 0);
  CHECK(aclrtSynchronizeStream(b) == 0);
  CHECK(aclrtValueWait(nullptr, 1, 1, b) == acl::kRtParam && aclrtValueWait(word, 1, 4, b) == acl::kRtParam);
  CHECK(aclrtFree(word) == 0 && aclrtFree(data) == 0 && aclrtDestroyEvent(event) == 0);
  CHECK(aclrtDestroyStream(a) == 0 && aclrtDestroyStream(b) == 0);
}

void slow(void* done) {
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  static_cast<std::atomic<bool>*>(done)->store(true);
}

void waiting_has_a_limit() {
  aclrtStream stream;
  CHECK(aclrtCreateStream(&stream) == 0);
  std::atomic<bool> done{false};
  CHECK(aclrtLaunchHostFunc(stream, slow, &done) == 0);
  CHECK(aclrtSynchronizeStreamWithTimeout(stream, 10) == acl::kRtStreamTimeout);
  CHECK(aclrtSynchronizeStreamWithTimeout(stream, -1) == 0 && done);
  CHECK(aclrtDestroyStream(stream) == 0);
}

void memory() {
  size_t before = 0, after = 0, total = 0;
  CHECK(aclrtGetMemInfo(1, &before, &total) == 0);
  void* block = nullptr;
  CHECK(aclrtMalloc(&block, 1000, 0) == 0);
  CHECK(aclrtGetMemInfo(1, &after, &total) == 0 && before - after == 4096);
  std::vector<char> host(1000, 7), back(1000);
  CHECK(aclrtMemcpy(block, 1000, host.data(), 1000, acl::kHostToDevice) == 0);
  CHECK(aclrtMemcpy(back.data(), 1000, block, 1000, acl::kDeviceToHost) == 0 && back == host);
  CHECK(aclrtMemcpy(block, 10, host.data(), 11, acl::kHostToDevice) == acl::kRtParam);
  CHECK(aclrtMemcpy(host.data(), 1000, back.data(), 1000, acl::kDeviceToHost) == acl::kRtParam);
  CHECK(aclrtFree(block) == 0 && aclrtFree(block) == acl::kRtParam);
  CHECK(aclrtMalloc(&block, size_t{1} << 60, 0) == acl::kRtOutOfMemory);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      CHECK(aclrtSetDevice(0) == 0);
      for (int i = 0; i < 100; ++i) {
        void* own = nullptr;
        CHECK(aclrtMalloc(&own, static_cast<size_t>(64 + i), 0) == 0);
        CHECK(aclrtFree(own) == 0);
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(aclrtGetMemInfo(1, &after, &total) == 0 && after == before);
}

void mapped_memory() {
  void *range = nullptr, *piece = nullptr;
  CHECK(aclrtReserveMemAddress(&range, 1 << 21, 0, nullptr, 0) == 0);
  CHECK(aclrtMallocPhysical(&piece, 1 << 20, nullptr, 0) == 0);
  CHECK(aclrtMapMem(range, 1 << 20, 0, piece, 0) == 0);
  std::vector<char> host(1 << 20, 3), back(1 << 20);
  CHECK(aclrtMemcpy(range, host.size(), host.data(), host.size(), acl::kHostToDevice) == 0);
  CHECK(aclrtMemcpy(back.data(), back.size(), range, back.size(), acl::kDeviceToHost) == 0 && back == host);
  CHECK(aclrtMemcpy(range, 1 << 21, host.data(), (1 << 20) + 1, acl::kHostToDevice) == acl::kRtParam);
  CHECK(aclrtUnmapMem(range) == 0 && aclrtFreePhysical(piece) == 0 && aclrtReleaseMemAddress(range) == 0);
}

void capture() {
  aclrtStream stream;
  aclmdlRI model = nullptr;
  void *a = nullptr, *group = nullptr;
  CHECK(aclrtCreateStream(&stream) == 0 && aclrtMalloc(&a, 64, 0) == 0);
  CHECK(aclmdlRICaptureBegin(stream, 0) == 0);
  CHECK(aclrtMemsetAsync(a, 64, 1, 32, stream) == 0);
  CHECK(aclmdlRICaptureTaskGrpBegin(stream) == 0);
  CHECK(aclrtMemsetAsync(static_cast<char*>(a) + 32, 32, 2, 32, stream) == 0);
  CHECK(aclmdlRICaptureTaskGrpEnd(stream, &group) == 0);
  CHECK(aclmdlRICaptureEnd(stream, &model) == 0 && model != nullptr);
  char back[64] = {};
  CHECK(aclrtMemcpy(back, 64, a, 64, acl::kDeviceToHost) == 0 && back[0] == 0);  // recorded, not run
  CHECK(aclmdlRIExecuteAsync(model, stream) == 0 && aclrtSynchronizeStream(stream) == 0);
  CHECK(aclrtMemcpy(back, 64, a, 64, acl::kDeviceToHost) == 0 && back[0] == 1 && back[63] == 2);
  CHECK(aclmdlRICaptureTaskUpdateBegin(stream, group) == 0);
  CHECK(aclrtMemsetAsync(static_cast<char*>(a) + 32, 32, 9, 32, stream) == 0);
  CHECK(aclmdlRICaptureTaskUpdateEnd(stream) == 0);
  CHECK(aclmdlRIExecuteAsync(model, stream) == 0 && aclrtSynchronizeStream(stream) == 0);
  CHECK(aclrtMemcpy(back, 64, a, 64, acl::kDeviceToHost) == 0 && back[0] == 1 && back[63] == 9);
  CHECK(aclmdlRICaptureBegin(stream, 0) == 0);
  CHECK(aclrtSynchronizeStream(stream) == acl::kRtCaptureForbidden);
  aclmdlRI broken = nullptr;
  CHECK(aclmdlRICaptureEnd(stream, &broken) == acl::kRtCaptureInvalidated && broken == nullptr);
  CHECK(aclmdlRICaptureBegin(nullptr, 0) == acl::kRtCaptureImplicit);
  CHECK(aclmdlRIDestroy(model) == 0 && aclmdlRIDestroy(model) == acl::kRtHandle);
  CHECK(aclrtFree(a) == 0 && aclrtDestroyStream(stream) == 0);
}

void collectives() {
  std::vector<char> info(4108);
  CHECK(HcclGetRootInfo(info.data()) == 0);
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&info, rank] {
      CHECK(aclrtSetDevice(0) == 0);
      void *comm = nullptr, *data = nullptr;
      aclrtStream stream;
      CHECK(HcclCommInitRootInfo(3, info.data(), rank, &comm) == 0);
      CHECK(aclrtCreateStream(&stream) == 0 && aclrtMalloc(&data, 16, 0) == 0);
      float values[4] = {1, 2, 3, static_cast<float>(rank)};
      CHECK(aclrtMemcpy(data, 16, values, 16, acl::kHostToDevice) == 0);
      CHECK(HcclAllReduce(data, data, 4, 4, 0, comm, stream) == 0 && aclrtSynchronizeStream(stream) == 0);
      CHECK(aclrtMemcpy(values, 16, data, 16, acl::kDeviceToHost) == 0);
      CHECK(values[0] == 3 && values[2] == 9 && values[3] == 3);
      CHECK(HcclCommDestroy(comm) == 0 && aclrtFree(data) == 0 && aclrtDestroyStream(stream) == 0);
    });
  for (auto& rank : ranks) rank.join();
}

}  // namespace

int main() {
  CHECK(aclrtSynchronizeDevice() == acl::kRtNoContext);
  CHECK(aclInit(nullptr) == 0 && aclrtSetDevice(0) == 0);
  order_within_a_stream();
  events_order_two_streams();
  replays_wait_for_others();
  waiting_has_a_limit();
  memory();
  mapped_memory();
  capture();
  collectives();
  CHECK(aclFinalize() == 0);
  std::puts("all well");
}
