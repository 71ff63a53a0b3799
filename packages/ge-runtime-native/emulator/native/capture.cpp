// Capture of streams (aclmdlRI*).
#include "capture.h"

#include <cstdio>
#include <unordered_map>

#include "state.h"

namespace emu {
namespace {

// Tasks that stand as one in a recording and may be replaced between replays.
struct Group {
  std::mutex mutex;
  std::vector<Task> tasks;

  aclError run() {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto& task : tasks)
      if (aclError code = task.perform()) return code;
    return acl::kOk;
  }
};

struct Book {
  std::mutex mutex;
  std::unordered_map<void*, std::shared_ptr<Group>> groups;
  std::unordered_map<void*, std::shared_ptr<Group>> updates;  // by stream: the group that is being replaced
  std::unordered_map<void*, std::shared_ptr<Recording>> finished;  // handles given out
  std::vector<std::shared_ptr<Recording>> open;
  uint32_t next_id = 1;
};

Book& book() {
  static auto* made = new Book;
  return *made;
}

std::shared_ptr<Recording> find(aclmdlRI handle, bool open_too = false) {
  auto& b = book();
  std::lock_guard<std::mutex> lock(b.mutex);
  if (open_too)
    for (auto& open : b.open)
      if (open.get() == handle) return open;
  auto found = b.finished.find(handle);
  return found == b.finished.end() ? nullptr : found->second;
}

void leave(const std::shared_ptr<Recording>& recording) {
  for (auto* stream : recording->joined) stream->record_into(nullptr);
  recording->origin->record_into(nullptr);
  recording->finished = true;
  auto& b = book();
  std::lock_guard<std::mutex> lock(b.mutex);
  for (auto it = b.open.begin(); it != b.open.end(); ++it)
    if (*it == recording) {
      b.open.erase(it);
      break;
    }
}

}  // namespace

aclError Recording::add(Task task) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!valid) return fail(acl::kRtCaptureInvalidated, "%s: the capture was invalidated before", task.name.c_str());
  tasks.push_back(std::move(task));
  return acl::kOk;
}

std::shared_ptr<Recording> recording_of(const std::shared_ptr<Stream>& stream) {
  return std::static_pointer_cast<Recording>(stream->recorder());  // nothing else records
}

// Modes of captures and of threads: what a capture forbids to any thread, to its own, to none.
enum : int { kGlobal, kThreadLocal, kRelaxed };
thread_local int thread_mode = kGlobal;

aclError refuse_in_capture(const char* call, const std::shared_ptr<Stream>& stream) {
  std::shared_ptr<Recording> hit = stream == nullptr ? nullptr : recording_of(stream);
  if (stream == nullptr && thread_mode != kRelaxed) {
    auto& b = book();
    std::lock_guard<std::mutex> lock(b.mutex);
    for (auto& open : b.open) {  // of the capture and of the thread that calls, whichever forbids less counts
      const bool own = open->thread == std::this_thread::get_id();
      if (open->mode != kRelaxed && (own || (open->mode == kGlobal && thread_mode == kGlobal))) hit = open;
    }
  }
  if (hit == nullptr) return acl::kOk;
  std::lock_guard<std::mutex> lock(hit->mutex);
  hit->valid = false;
  return fail(acl::kRtCaptureForbidden, "%s is not allowed while a stream is captured; the capture is invalid now", call);
}

}  // namespace emu

using emu::fail;
using emu::Recording;
using Ptr = std::shared_ptr<Recording>;

EMU_API aclError aclmdlRICaptureBegin(aclrtStream handle, int mode) {
  std::shared_ptr<emu::Stream> stream;
  if (handle == nullptr) return fail(acl::kRtCaptureImplicit, "aclmdlRICaptureBegin: the default stream cannot be captured");
  if (mode < 0 || mode > 2) return fail(acl::kRtParam, "aclmdlRICaptureBegin: unknown mode %d", mode);
  if (aclError code = emu::need_stream("aclmdlRICaptureBegin", handle, &stream)) return code;
  if (emu::recording_of(stream) != nullptr) return fail(acl::kRtCaptureForbidden, "aclmdlRICaptureBegin: already captured");
  auto recording = std::make_shared<Recording>();
  recording->origin = stream;
  recording->thread = std::this_thread::get_id();
  recording->mode = mode;
  auto& b = emu::book();
  std::lock_guard<std::mutex> lock(b.mutex);
  recording->id = b.next_id++;
  b.open.push_back(recording);
  stream->record_into(recording);
  return acl::kOk;
}

EMU_API aclError aclmdlRICaptureGetInfo(aclrtStream handle, int* status, aclmdlRI* model) {
  std::shared_ptr<emu::Stream> stream;
  if (aclError code = emu::need_stream("aclmdlRICaptureGetInfo", handle, &stream)) return code;
  auto recording = emu::recording_of(stream);
  if (status != nullptr) *status = recording == nullptr ? 0 : recording->valid ? 1 : 2;
  if (model != nullptr) *model = recording.get();
  return acl::kOk;
}

EMU_API aclError aclmdlRICaptureEnd(aclrtStream handle, aclmdlRI* model) {
  std::shared_ptr<emu::Stream> stream;
  if (model == nullptr) return fail(acl::kRtParam, "aclmdlRICaptureEnd: model is null");
  if (aclError code = emu::need_stream("aclmdlRICaptureEnd", handle, &stream)) return code;
  Ptr recording = emu::recording_of(stream);
  if (recording == nullptr) return fail(acl::kRtCaptureNotCapturing, "aclmdlRICaptureEnd: the stream is not captured");
  if (recording->origin != stream)
    return fail(acl::kRtCaptureStream, "aclmdlRICaptureEnd: the capture was begun on another stream");
  if (recording->mode != 2 && recording->thread != std::this_thread::get_id())
    return fail(acl::kRtCaptureThread, "aclmdlRICaptureEnd: the capture was begun on another thread");
  const bool joined = recording->returned.size() == recording->joined.size();
  const bool valid = recording->valid;
  emu::leave(recording);
  *model = nullptr;
  if (!valid) return fail(acl::kRtCaptureInvalidated, "aclmdlRICaptureEnd: the capture was invalidated");
  if (!joined)
    return fail(acl::kRtCaptureUnjoined, "aclmdlRICaptureEnd: the captured stream does not wait for every stream that joined");
  auto& b = emu::book();
  std::lock_guard<std::mutex> lock(b.mutex);
  b.finished[recording.get()] = recording;
  *model = recording.get();
  return acl::kOk;
}

EMU_API aclError aclmdlRIExecuteAsync(aclmdlRI model, aclrtStream stream) {
  Ptr recording = emu::find(model);
  if (recording == nullptr) return fail(acl::kRtHandle, "aclmdlRIExecuteAsync: %p is not a recording", model);
  ++recording->running;
  return emu::submit(stream, "replay", [recording] {
    std::vector<emu::Task> tasks;
    {
      std::lock_guard<std::mutex> lock(recording->mutex);
      tasks = recording->tasks;
    }
    aclError code = acl::kOk;
    for (auto& task : tasks)
      if (code == acl::kOk || task.always)
        if (aclError own = task.perform(); code == acl::kOk) code = own;
    --recording->running;
    return code;
  });
}

EMU_API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream, int32_t);
EMU_API aclError aclmdlRIExecute(aclmdlRI model, int32_t timeout) {
  if (aclError code = aclmdlRIExecuteAsync(model, nullptr)) return code;
  return aclrtSynchronizeStreamWithTimeout(nullptr, timeout);
}

EMU_API aclError aclmdlRIGetId(aclmdlRI model, uint32_t* id) {
  Ptr recording = emu::find(model, true);
  if (recording == nullptr || id == nullptr) return fail(acl::kRtHandle, "aclmdlRIGetId: %p is not a recording", model);
  *id = recording->id;
  return acl::kOk;
}

EMU_API aclError aclmdlRIDestroy(aclmdlRI model) {
  Ptr recording = emu::find(model);
  if (recording == nullptr) return fail(acl::kRtHandle, "aclmdlRIDestroy: %p is not a recording", model);
  if (recording->running > 0) return fail(acl::kRtCaptureRunning, "aclmdlRIDestroy: the recording is being replayed");
  auto& b = emu::book();
  std::lock_guard<std::mutex> lock(b.mutex);
  b.finished.erase(model);
  return acl::kOk;
}

EMU_API aclError aclmdlRIDebugJsonPrint(aclmdlRI model, const char* path, uint32_t) {
  Ptr recording = emu::find(model);
  if (recording == nullptr || path == nullptr) return fail(acl::kRtHandle, "aclmdlRIDebugJsonPrint: no recording or path");
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return fail(acl::kRtParam, "aclmdlRIDebugJsonPrint: %s cannot be written", path);
  std::fprintf(file, "[");
  std::lock_guard<std::mutex> lock(recording->mutex);
  for (size_t i = 0; i < recording->tasks.size(); ++i) {  // names are operator types and fixed words: nothing to escape
    const auto& task = recording->tasks[i];
    std::fprintf(file, "%s{\"ph\": \"X\", \"pid\": 0, \"tid\": %u, \"ts\": %zu, \"dur\": 1, \"name\": \"%s\", "
                 "\"args\": {\"Task Id\": %zu, \"Stream Id\": %u}}",
                 i == 0 ? "" : ", ", task.stream, i, task.name.c_str(), i, task.stream);
  }
  std::fprintf(file, "]\n");
  std::fclose(file);
  return acl::kOk;
}

// Groups: what stands between Begin and End becomes one task, which an update replaces.

EMU_API aclError aclmdlRICaptureTaskGrpBegin(aclrtStream handle) {
  std::shared_ptr<emu::Stream> stream;
  if (aclError code = emu::need_stream("aclmdlRICaptureTaskGrpBegin", handle, &stream)) return code;
  Ptr recording = emu::recording_of(stream);
  if (recording == nullptr) return fail(acl::kRtCaptureNotCapturing, "aclmdlRICaptureTaskGrpBegin: not capturing");
  std::lock_guard<std::mutex> lock(recording->mutex);
  if (recording->group_start >= 0) return fail(acl::kRtParam, "aclmdlRICaptureTaskGrpBegin: a group is open already");
  recording->group_start = static_cast<ptrdiff_t>(recording->tasks.size());
  return acl::kOk;
}

EMU_API aclError aclmdlRICaptureTaskGrpEnd(aclrtStream handle, void** group_handle) {
  std::shared_ptr<emu::Stream> stream;
  if (group_handle == nullptr) return fail(acl::kRtParam, "aclmdlRICaptureTaskGrpEnd: handle is null");
  if (aclError code = emu::need_stream("aclmdlRICaptureTaskGrpEnd", handle, &stream)) return code;
  Ptr recording = emu::recording_of(stream);
  if (recording == nullptr || recording->group_start < 0)
    return fail(acl::kRtCaptureNotCapturing, "aclmdlRICaptureTaskGrpEnd: no group is open");
  auto group = std::make_shared<emu::Group>();
  {
    std::lock_guard<std::mutex> lock(recording->mutex);
    const auto first = recording->tasks.begin() + recording->group_start;
    group->tasks.assign(std::make_move_iterator(first), std::make_move_iterator(recording->tasks.end()));
    recording->tasks.erase(first, recording->tasks.end());
    recording->tasks.push_back({"group", [group] { return group->run(); }, false, "", stream->id()});
    recording->group_start = -1;
  }
  auto& b = emu::book();
  std::lock_guard<std::mutex> lock(b.mutex);
  b.groups[group.get()] = group;
  *group_handle = group.get();
  return acl::kOk;
}

EMU_API aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream handle, void* group_handle) {
  std::shared_ptr<emu::Stream> stream;
  if (aclError code = emu::need_stream("aclmdlRICaptureTaskUpdateBegin", handle, &stream)) return code;
  auto& b = emu::book();
  std::lock_guard<std::mutex> lock(b.mutex);
  auto found = b.groups.find(group_handle);
  if (found == b.groups.end()) return fail(acl::kRtHandle, "aclmdlRICaptureTaskUpdateBegin: %p is not a group", group_handle);
  if (emu::recording_of(stream) != nullptr) return fail(acl::kRtCaptureForbidden, "aclmdlRICaptureTaskUpdateBegin: capturing");
  b.updates[stream.get()] = found->second;
  auto fresh = std::make_shared<Recording>();
  fresh->origin = stream;
  fresh->thread = std::this_thread::get_id();
  stream->record_into(fresh);
  return acl::kOk;
}

EMU_API aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream handle) {
  std::shared_ptr<emu::Stream> stream;
  if (aclError code = emu::need_stream("aclmdlRICaptureTaskUpdateEnd", handle, &stream)) return code;
  auto& b = emu::book();
  std::shared_ptr<emu::Group> group;
  {
    std::lock_guard<std::mutex> lock(b.mutex);
    auto found = b.updates.find(stream.get());
    if (found == b.updates.end()) return fail(acl::kRtCaptureNotCapturing, "aclmdlRICaptureTaskUpdateEnd: no update");
    group = found->second;
    b.updates.erase(found);
  }
  Ptr fresh = emu::recording_of(stream);
  stream->record_into(nullptr);
  // In stream order: replays launched before keep the old tasks.
  return emu::submit(handle, "group update", [group, fresh] {
    std::lock_guard<std::mutex> lock(group->mutex);
    group->tasks = fresh->tasks;
    return acl::kOk;
  });
}

EMU_API aclError aclmdlRICaptureThreadExchangeMode(int* mode) {
  if (mode == nullptr || *mode < 0 || *mode > 2) return fail(acl::kRtParam, "aclmdlRICaptureThreadExchangeMode");
  std::swap(emu::thread_mode, *mode);
  return acl::kOk;
}
