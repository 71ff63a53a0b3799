// Streams: making and ending them, and what they run.
#include "stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <unordered_map>

#include "bridge.h"
#include "state.h"

namespace emu {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<void*, std::shared_ptr<Stream>> live;
  std::unordered_map<int, std::shared_ptr<Stream>> defaults;
  uint32_t next_id = 1;
};

Registry& registry() {  // leaked on purpose: worker threads outlive static destructors
  static auto* made = new Registry;
  return *made;
}

// Whether somebody wants to know what ran when.
bool profiled() {
  static const bool wanted = std::getenv("TAIR_EMULATOR_PROFILE") != nullptr;
  return wanted;
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

aclError Task::perform() const {
  const int64_t start = profiled() ? now_ns() : 0;
  const aclError code = run();
  if (profiled()) bridge::call("profile.task", name.data(), name.size(), {stream, start, now_ns()});
  if (code == acl::kOk || caller.empty()) return code;
  std::string text = take_error_text();
  text.insert(std::min(text.find("\nNext: "), text.size()), "\n  at " + caller);
  set_error_text(text);
  return code;
}

Stream::Stream(int device, uint32_t id, uint32_t, uint32_t) : device_(device), id_(id) {}

std::shared_ptr<Stream> make_stream(int device, uint32_t priority, uint32_t flags) {
  auto& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto made = std::make_shared<Stream>(device, all.next_id++, priority, flags);
  made->self_ = made;
  return made;
}

void Stream::push(Task task) {
  std::lock_guard<std::mutex> lock(mutex_);
  tasks_.push_back(std::move(task));
  ++pushed_;
  if (!started_) {
    started_ = true;
    std::thread([hold = self_] { hold->work(); }).detach();
  }
  work_.notify_one();
}

void Stream::work() {
  worker_ = std::this_thread::get_id();
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return closed_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    if (error_ == 0 || task.always) {
      lock.unlock();
      take_error_text();
      aclError code = task.perform();
      std::string text = code == 0 ? std::string() : peek_error_text();
      // Callers often show only the number, and much later: the device's log has the words.
      if (code != 0) std::fprintf(stderr, "[emulator] stream %u: %s: %s\n", id_, task.name.c_str(), text.c_str());
      task.run = nullptr;  // what it holds is freed outside the lock
      lock.lock();
      if (code != 0 && error_ == 0) error_ = code, error_text_ = task.name + ": " + text;
    }
    ++finished_;
    done_.notify_all();
  }
}

aclError Stream::wait(int64_t ms, aclError timeout_code) {
  if (std::this_thread::get_id() == worker_) return acl::kOk;
  bridge::GilReleased released;
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t goal = pushed_;
  auto reached = [this, goal] { return finished_ >= goal; };
  if (ms < 0) {
    done_.wait(lock, reached);
  } else if (!done_.wait_for(lock, std::chrono::milliseconds(ms), reached)) {
    return fail(timeout_code, "stream %u: not done after %lld ms", id_, static_cast<long long>(ms));
  }
  if (error_ == 0) return acl::kOk;
  aclError code = error_;
  set_error_text(error_text_);
  error_ = 0;
  return code;
}

bool Stream::idle() {
  std::lock_guard<std::mutex> lock(mutex_);
  return finished_ >= pushed_;
}

void Stream::close() {
  std::shared_ptr<Stream> last;
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  last.swap(self_);
  work_.notify_all();
}

std::shared_ptr<Recorder> Stream::recorder() {
  std::lock_guard<std::mutex> lock(mutex_);
  return recorder_;
}

void Stream::record_into(std::shared_ptr<Recorder> recorder) {
  std::lock_guard<std::mutex> lock(mutex_);
  recorder_ = std::move(recorder);
}

std::shared_ptr<Stream> find_stream(aclrtStream handle) {
  auto& all = registry();
  if (handle != nullptr) {
    std::lock_guard<std::mutex> lock(all.mutex);
    auto found = all.live.find(handle);
    return found == all.live.end() ? nullptr : found->second;
  }
  const int device = current_device();
  if (device < 0) return nullptr;
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    auto found = all.defaults.find(device);
    if (found != all.defaults.end()) return found->second;
  }
  auto made = make_stream(device, 0, 0);
  std::lock_guard<std::mutex> lock(all.mutex);
  return all.defaults.emplace(device, made).first->second;
}

aclError need_stream(const char* call, aclrtStream handle, std::shared_ptr<Stream>* found) {
  if (aclError code = refuse_in_fork(call)) return code;
  *found = find_stream(handle);
  if (*found != nullptr) return acl::kOk;
  if (handle == nullptr) return need_context(call);
  return fail(acl::kRtHandle, "%s: %p is not a live stream", call, handle);
}

aclError submit(aclrtStream handle, const char* name, std::function<aclError()> run, bool always) {
  return submit(handle, {name, std::move(run), always, "", 0});
}

aclError submit(aclrtStream handle, Task task) {
  std::shared_ptr<Stream> stream;
  if (aclError code = need_stream(task.name.c_str(), handle, &stream)) return code;
  task.stream = stream->id();
  if (auto recorder = stream->recorder()) return recorder->add(std::move(task));
  stream->push(std::move(task));
  return acl::kOk;
}

std::vector<std::shared_ptr<Stream>> streams_of(int device) {
  std::vector<std::shared_ptr<Stream>> found;
  auto& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (auto& [handle, stream] : all.live)
    if (device < 0 || stream->device() == device) found.push_back(stream);
  for (auto& [id, stream] : all.defaults)
    if (device < 0 || id == device) found.push_back(stream);
  return found;
}

void drain_device(int device) {
  for (auto& stream : streams_of(device)) stream->wait(-1, acl::kRtDeviceTimeout);
}

void drain_all() { drain_device(-1); }

}  // namespace emu

using emu::fail;
using StreamPtr = std::shared_ptr<emu::Stream>;

EMU_API aclError aclrtCreateStreamWithConfig(aclrtStream* made, uint32_t priority, uint32_t flag) {
  if (made == nullptr) return fail(acl::kRtParam, "aclrtCreateStream: stream is null");
  if (aclError code = emu::need_context("aclrtCreateStream")) return code;
  auto stream = emu::make_stream(emu::current_device(), priority, flag);
  auto& all = emu::registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.live[stream.get()] = stream;
  *made = stream.get();
  return acl::kOk;
}

EMU_API aclError aclrtCreateStream(aclrtStream* made) { return aclrtCreateStreamWithConfig(made, 0, 0); }

EMU_API aclError aclrtDestroyStreamForce(aclrtStream handle) {
  StreamPtr stream;
  auto& all = emu::registry();
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    auto found = all.live.find(handle);
    if (found == all.live.end()) return fail(acl::kRtHandle, "aclrtDestroyStream: %p is not a live stream", handle);
    stream = found->second;
    all.live.erase(found);
  }
  stream->close();
  return acl::kOk;
}

EMU_API aclError aclrtDestroyStream(aclrtStream handle) {
  StreamPtr stream;
  if (handle == nullptr) return fail(acl::kRtParam, "aclrtDestroyStream: stream is null");
  if (aclError code = emu::need_stream("aclrtDestroyStream", handle, &stream)) return code;
  aclError code = stream->wait(-1, acl::kRtStreamTimeout);
  aclrtDestroyStreamForce(handle);
  return code;
}

EMU_API aclError aclrtStreamGetId(aclrtStream handle, int32_t* id) {
  StreamPtr stream;
  if (id == nullptr) return fail(acl::kRtParam, "aclrtStreamGetId: id is null");
  if (aclError code = emu::need_stream("aclrtStreamGetId", handle, &stream)) return code;
  *id = static_cast<int32_t>(stream->id());
  return acl::kOk;
}

EMU_API aclError aclrtLaunchHostFunc(aclrtStream stream, void (*function)(void*), void* args) {
  if (function == nullptr) return fail(acl::kRtParam, "aclrtLaunchHostFunc: function is null");
  return emu::submit(stream, "host function", [function, args] { return function(args), acl::kOk; });
}

EMU_API aclError aclrtLaunchCallback(void (*function)(void*), void* data, int, aclrtStream stream) {
  return aclrtLaunchHostFunc(stream, function, data);
}

// Callbacks run on the stream's own thread, so nobody has to serve them.
EMU_API aclError aclrtSubscribeReport(uint64_t, aclrtStream) { return acl::kOk; }
EMU_API aclError aclrtUnSubscribeReport(uint64_t, aclrtStream) { return acl::kOk; }
EMU_API aclError aclrtProcessReport(int32_t timeout) {
  std::this_thread::sleep_for(std::chrono::milliseconds(timeout < 0 ? 0 : timeout));
  return acl::kOk;
}
EMU_API aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) { return acl::kOk; }  // an error always stops a stream
EMU_API aclError aclrtSetStreamAttribute(aclrtStream handle, int, void* value) {
  StreamPtr stream;
  if (value == nullptr) return fail(acl::kRtParam, "aclrtSetStreamAttribute: value is null");
  return emu::need_stream("aclrtSetStreamAttribute", handle, &stream);
}
