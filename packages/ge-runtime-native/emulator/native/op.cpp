// Single operators by GE type name (aclopCompileAndExecute), and compile options.
#include <cstring>
#include <map>
#include <mutex>

#include "bridge.h"
#include "json.h"
#include "memory.h"
#include "operand.h"
#include "state.h"
#include "stream.h"

namespace emu {
namespace {

struct Options {
  std::mutex mutex;
  std::map<int, std::string> compile;
  std::map<int, int64_t> system;
};

Options& options() {
  static auto* made = new Options;
  return *made;
}

// One tensor of a call: address, bytes, rank, dims; what `device.py` reads.
void add_words(std::vector<int64_t>* words, const aclTensorDesc* desc, const aclDataBuffer* buffer) {
  words->push_back(reinterpret_cast<int64_t>(buffer == nullptr ? nullptr : buffer->data));
  words->push_back(static_cast<int64_t>(buffer == nullptr ? 0 : buffer->size));
  words->push_back(static_cast<int64_t>(desc->storage_dims.size()));
  words->insert(words->end(), desc->storage_dims.begin(), desc->storage_dims.end());
}

std::string describe(const aclTensorDesc* desc, const aclDataBuffer* buffer, bool input) {
  std::string out = "{\"dtype\":" + std::to_string(desc->dtype) + ",\"rank\":" +
                    std::to_string(desc->storage_dims.size()) + ",\"format\":" + std::to_string(desc->storage_format);
  if (desc->storage_format == 29)  // FRACTAL_NZ: what the tiles hold
    out += ",\"logical\":" + json::list(desc->dims, [](int64_t v) { return std::to_string(v); });
  if (!desc->name.empty()) out += ",\"name\":" + json::text(desc->name);
  if (input && desc->placement == acl::kHostConstant && buffer != nullptr) {
    const size_t count = acl::bytes_of(desc->dtype, [desc] {
      size_t n = 1;
      for (int64_t dim : desc->storage_dims) n *= static_cast<size_t>(dim);
      return n;
    }());
    out += ",\"dims\":" + json::list(desc->storage_dims, [](int64_t v) { return std::to_string(v); });
    out += ",\"value\":" + json::hex(buffer->data, std::min(count, buffer->size));
  }
  return out + "}";
}

size_t needed(const aclTensorDesc* desc) {
  size_t count = 1;
  for (int64_t dim : desc->storage_dims) count *= dim < 0 ? 0 : static_cast<size_t>(dim);
  return acl::bytes_of(desc->dtype, count);
}

aclError check(const char* op, const char* side, int index, const aclTensorDesc* desc, const aclDataBuffer* buffer) {
  if (desc == nullptr) return fail(acl::kInvalidParam, "%s: %s %d has no description", op, side, index);
  if (desc->dtype == acl::kUndefined || buffer == nullptr || buffer->data == nullptr) return acl::kOk;
  const size_t bytes = needed(desc);
  if (desc->placement == acl::kDeviceMemory) {
    const std::string what = std::string(side) + " " + std::to_string(index);
    if (aclError code = need_device(op, what.c_str(), buffer->data, bytes)) return code;
  }
  if (buffer->size < bytes)
    return fail(acl::kInvalidParam, "%s: %s %d needs %zu bytes, its buffer has %zu", op, side, index, bytes, buffer->size);
  return acl::kOk;
}

struct OpCall {
  const char* type;
  int inputs;
  aclTensorDesc* const* input_descs;
  aclDataBuffer* const* input_buffers;
  int outputs;
  aclTensorDesc* const* output_descs;
  aclDataBuffer* const* output_buffers;
  const aclopAttr* attr;
};

aclError launch(const OpCall& c, aclrtStream stream, bool sizes_back) {
  if (c.type == nullptr) return fail(acl::kInvalidParam, "aclopCompileAndExecute: no operator type");
  std::string text = "{\"op\":" + json::text(c.type) + ",\"inputs\":[";
  std::vector<int64_t> words{c.inputs, c.outputs};
  std::vector<size_t> places;
  std::vector<std::string> kept;  // host values may be gone when the stream gets there
  for (int i = 0; i < c.inputs; ++i) {
    const auto* desc = c.input_descs[i];
    const auto* buffer = c.input_buffers[i];
    if (aclError code = check(c.type, "input", i, desc, buffer)) return code;
    text += (i == 0 ? "" : ",") + describe(desc, buffer, true);
    if (desc->placement != acl::kDeviceMemory && buffer != nullptr && buffer->data != nullptr) {
      kept.emplace_back(static_cast<const char*>(buffer->data), needed(desc));
      places.push_back(words.size());
    }
    add_words(&words, desc, buffer);
  }
  text += "],\"outputs\":[";
  for (int i = 0; i < c.outputs; ++i) {
    if (!sizes_back)
      if (aclError code = check(c.type, "output", i, c.output_descs[i], c.output_buffers[i])) return code;
    text += (i == 0 ? "" : ",") + describe(c.output_descs[i], c.output_buffers[i], false);
    add_words(&words, c.output_descs[i], c.output_buffers[i]);
  }
  text += "],\"attrs\":{";
  if (c.attr != nullptr) {
    bool first = true;
    for (const auto& [name, value] : c.attr->values) {
      text += (first ? "" : ",") + json::text(name) + ":[\"" + value.first + "\"," + value.second + "]";
      first = false;
    }
  }
  text += sizes_back ? "},\"sizes_back\":true}" : "}}";
  std::string caller;
  if (bridge::may_wait()) {  // see AclnnCall::plan
    auto prepared = bridge::call("op.prepare", text.data(), text.size());
    if (prepared.value < 0) return prepared.error;
    caller = std::move(prepared.reply);
  }

  // The task owns the copies, so their addresses stay good for every replay.
  auto hold = std::make_shared<std::vector<std::string>>(std::move(kept));
  for (size_t i = 0; i < places.size(); ++i) words[places[i]] = reinterpret_cast<int64_t>((*hold)[i].data());
  auto reply = std::make_shared<std::string>();
  auto run = [hold, reply, text = std::move(text), words = std::move(words)]() -> aclError {
    const auto answer = bridge::call("op.run", text.data(), text.size(), words);
    *reply = answer.reply;
    return answer.value < 0 ? answer.error : acl::kOk;
  };
  if (aclError code = submit(stream, {c.type, std::move(run), false, std::move(caller), 0})) return code;
  if (!sizes_back) return acl::kOk;

  // Sizes that depend on data: wait, then read them from the reply, "3,4;7".
  std::shared_ptr<Stream> found = find_stream(stream);
  if (aclError code = found->wait(-1, acl::kRtStreamTimeout)) return code;
  const char* at = reply->c_str();
  for (int i = 0; i < c.outputs; ++i) {
    std::vector<int64_t> dims;
    while (*at != 0 && *at != ';') {
      char* end = nullptr;
      dims.push_back(std::strtoll(at, &end, 10));
      at = *end == ',' ? end + 1 : end;
    }
    if (*at == ';') ++at;
    c.output_descs[i]->dims = c.output_descs[i]->storage_dims = dims;
  }
  return acl::kOk;
}

}  // namespace
}  // namespace emu

using emu::fail;

EMU_API aclError aclopCompileAndExecute(const char* type, int inputs, const aclTensorDesc* const input_descs[],
                                        const aclDataBuffer* const input_buffers[], int outputs,
                                        const aclTensorDesc* const output_descs[], aclDataBuffer* const output_buffers[],
                                        const aclopAttr* attr, int, int, const char*, aclrtStream stream) {
  return emu::launch({type, inputs, const_cast<aclTensorDesc* const*>(input_descs),
                      const_cast<aclDataBuffer* const*>(input_buffers), outputs,
                      const_cast<aclTensorDesc* const*>(output_descs), output_buffers, attr},
                     stream, false);
}

EMU_API aclError aclopCompileAndExecuteV2(const char* type, int inputs, aclTensorDesc* input_descs[],
                                          aclDataBuffer* input_buffers[], int outputs, aclTensorDesc* output_descs[],
                                          aclDataBuffer* output_buffers[], aclopAttr* attr, int, int, const char*,
                                          aclrtStream stream) {
  return emu::launch({type, inputs, input_descs, input_buffers, outputs, output_descs, output_buffers, attr}, stream,
                     true);
}

EMU_API aclError aclSetCompileopt(int option, const char* value) {
  if (option < 0 || option > 16 || value == nullptr) return fail(acl::kInvalidParam, "aclSetCompileopt: %d", option);
  auto& o = emu::options();
  std::lock_guard<std::mutex> lock(o.mutex);
  o.compile[option] = value;
  return acl::kOk;
}

EMU_API size_t aclGetCompileoptSize(int option) {
  auto& o = emu::options();
  std::lock_guard<std::mutex> lock(o.mutex);
  return o.compile[option].size() + 1;
}

EMU_API aclError aclGetCompileopt(int option, char* value, size_t length) {
  auto& o = emu::options();
  std::lock_guard<std::mutex> lock(o.mutex);
  const std::string& found = o.compile[option];
  if (value == nullptr || length < found.size() + 1) return fail(acl::kInvalidParam, "aclGetCompileopt: room %zu", length);
  std::memcpy(value, found.c_str(), found.size() + 1);
  return acl::kOk;
}

EMU_API aclError aclrtSetSysParamOpt(int option, int64_t value) {
  auto& o = emu::options();
  std::lock_guard<std::mutex> lock(o.mutex);
  o.system[option] = value;
  return acl::kOk;
}
EMU_API aclError aclrtCtxSetSysParamOpt(int option, int64_t value) { return aclrtSetSysParamOpt(option, value); }

EMU_API aclError aclrtGetSysParamOpt(int option, int64_t* value) {
  if (value == nullptr) return fail(acl::kRtParam, "aclrtGetSysParamOpt: value is null");
  auto& o = emu::options();
  std::lock_guard<std::mutex> lock(o.mutex);
  *value = o.system[option];
  return acl::kOk;
}
EMU_API aclError aclrtCtxGetSysParamOpt(int option, int64_t* value) { return aclrtGetSysParamOpt(option, value); }
