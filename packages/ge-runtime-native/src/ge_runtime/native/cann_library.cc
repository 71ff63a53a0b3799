#include "cann_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

extern "C" char* gec_old_error_text(void* function);

namespace cann {
namespace {

struct Row {
  const char* library;
  const char* symbol;
  size_t slot;
  bool required;
  const char* purpose;
};

constexpr const char* kAcl = "libascendcl.so";
constexpr const char* kGraph = "libgraph.so";
constexpr const char* kRunner = "libge_runner.so";
constexpr const char* kHccl = "libhccl.so";
constexpr bool kNeeded = true;
constexpr bool kOptional = false;

#define SLOT(member) offsetof(Api, member)

const Row kRows[] = {
    {kAcl, "aclInit", SLOT(init), kNeeded, "using a device"},
    {kAcl, "aclFinalize", SLOT(finalize), kNeeded, "leaving a device"},
    {kAcl, "aclrtGetDeviceCount", SLOT(device_count), kNeeded, "finding devices"},
    {kAcl, "aclrtSetDevice", SLOT(set_device), kNeeded, "using a device"},
    {kAcl, "aclrtResetDevice", SLOT(reset_device), kNeeded, "leaving a device"},
    {kAcl, "aclrtGetDevice", SLOT(get_device), kOptional, "keeping the caller's device"},
    {kAcl, "aclrtGetSocName", SLOT(soc_name), kOptional, "naming the chip"},
    {kAcl, "aclGetDeviceCapability", SLOT(capability), kOptional, "checking core numbers against the chip"},
    {kAcl, "aclrtGetMemInfo", SLOT(memory_info), kOptional, "saying how much memory is free"},
    {kAcl, "aclrtCreateStream", SLOT(create_stream), kNeeded, "streams"},
    {kAcl, "aclrtDestroyStream", SLOT(destroy_stream), kNeeded, "streams"},
    {kAcl, "aclrtSynchronizeStream", SLOT(synchronize_stream), kNeeded, "streams"},
    {kAcl, "aclrtSynchronizeDevice", SLOT(synchronize_device), kNeeded, "streams"},
    {kAcl, "aclrtStreamQuery", SLOT(query_stream), kOptional, "letting inputs go before the next synchronisation"},
    {kAcl, "aclrtMalloc", SLOT(malloc), kNeeded, "device memory"},
    {kAcl, "aclrtFree", SLOT(free), kNeeded, "device memory"},
    {kAcl, "aclrtMemcpyAsync", SLOT(memcpy_async), kNeeded, "copies between host and device"},
    {kAcl, "aclGetRecentErrMsg", SLOT(recent_error), kOptional, "texts of runtime errors"},
    {kAcl, "aclsysGetCANNVersion", SLOT(version), kOptional, "the version of CANN"},
    {kAcl, "aclsysGetVersionStr", SLOT(version_text), kOptional, "the version of newer CANN"},
    {kHccl, "HcclGetRootInfo", SLOT(root_info), kOptional, "process groups without torch"},
    {kHccl, "HcclCommInitRootInfo", SLOT(comm_init), kOptional, "process groups without torch"},
    {kHccl, "HcclGetCommName", SLOT(comm_name), kOptional, "process groups without torch"},
    {kHccl, "HcclCommDestroy", SLOT(comm_destroy), kOptional, "process groups without torch"},
    {kHccl, "HcclGetErrorString", SLOT(hccl_error), kOptional, "texts of errors of process groups"},
    {kGraph, "_ZN2ge12AscendStringC1EPKc", SLOT(string_make), kNeeded, "options"},
    {kGraph, "_ZNK2ge12AscendString9GetStringEv", SLOT(string_text), kNeeded, "options and error texts"},
    {kGraph, "_ZNK2ge12AscendStringltERKS0_", SLOT(string_less), kNeeded, "options"},
    {kGraph, "_ZN2ge5GraphC1EPKc", SLOT(graph_make), kNeeded, "graphs"},
    {kGraph, "_ZN2ge5Graph28LoadFromSerializedModelArrayEPKvm", SLOT(graph_load), kNeeded, "reading a graph from memory"},
    {kGraph, "_ZNK2ge5Shape7GetDimsEv", SLOT(shape_dims), kNeeded, "sizes of results"},
    {kGraph, "_ZN2ge5ShapeC1ERKSt6vectorIlSaIlEE", SLOT(shape_make), kOptional, "running without GeSessionLoadGraph"},
    {kGraph, "_ZN2ge10TensorDescC1Ev", SLOT(desc_make), kOptional, "running without GeSessionLoadGraph"},
    {kGraph, "_ZN2ge10TensorDesc11SetDataTypeENS_8DataTypeE", SLOT(desc_set_dtype), kOptional,
     "running without GeSessionLoadGraph"},
    {kGraph, "_ZN2ge10TensorDesc9SetFormatENS_6FormatE", SLOT(desc_set_format), kOptional,
     "running without GeSessionLoadGraph"},
    {kGraph, "_ZN2ge10TensorDesc15SetOriginFormatENS_6FormatE", SLOT(desc_set_origin_format), kOptional,
     "running without GeSessionLoadGraph"},
    {kGraph, "_ZN2ge10TensorDesc14SetOriginShapeERKNS_5ShapeE", SLOT(desc_set_origin_shape), kOptional,
     "running without GeSessionLoadGraph"},
    {kGraph, "_ZN2ge10TensorDesc12SetPlacementENS_9PlacementE", SLOT(desc_set_placement), kOptional,
     "running without GeSessionLoadGraph"},
    {kGraph, "_ZN2ge6TensorC1Ev", SLOT(tensor_make), kOptional, "running without GeSessionLoadGraph"},
    {kGraph, "_ZN2ge6Tensor13SetTensorDescERKNS_10TensorDescE", SLOT(tensor_set_desc), kOptional,
     "running without GeSessionLoadGraph"},
    {kGraph, "_ZN2ge6Tensor14SetShapeDimNumEm", SLOT(tensor_set_rank), kOptional,
     "running without GeSessionLoadGraph"},
    {kGraph, "_ZN2ge6Tensor11SetShapeDimEml", SLOT(tensor_set_dim), kOptional, "running without GeSessionLoadGraph"},
    {kGraph, "_ZN2ge6Tensor7SetDataEPhmRKSt8functionIFvS1_EE", SLOT(tensor_set_data), kOptional,
     "running without GeSessionLoadGraph"},
    {kGraph, "_ZN2ge6Tensor9ResetDataEPhmRKSt8functionIFvS1_EE", SLOT(tensor_reset_data), kOptional,
     "running without GeSessionLoadGraph"},
    {kGraph, "_ZN2ge6Tensor9ResetDataEv", SLOT(tensor_take_data), kOptional, "running without GeSessionLoadGraph"},
    {kGraph, "_ZNK2ge6Tensor11GetDataTypeEv", SLOT(tensor_dtype), kOptional, "running without GeSessionLoadGraph"},
    {kGraph, "_ZNK2ge6Tensor14GetShapeDimNumEv", SLOT(tensor_rank), kOptional, "running without GeSessionLoadGraph"},
    {kGraph, "_ZNK2ge6Tensor11GetShapeDimEm", SLOT(tensor_dim), kOptional, "running without GeSessionLoadGraph"},
    {kRunner,
     "_ZN2ge12GEInitializeERKSt3mapINS_12AscendStringES1_St4lessIS1_ESaISt4pairIKS1_S1_EEE",
     SLOT(ge_initialize), kNeeded, "the graph engine"},
    {kRunner, "_ZN2ge10GEFinalizeEv", SLOT(ge_finalize), kNeeded, "the graph engine"},
    {kRunner, "_ZN2ge13GEGetErrorMsgEv", SLOT(error_text), kOptional, "texts of graph engine errors"},
    {kRunner,
     "_ZN2ge7SessionC1ERKSt3mapINS_12AscendStringES2_St4lessIS2_ESaISt4pairIKS2_S2_EEE",
     SLOT(session_make), kNeeded, "graph sessions"},
    {kRunner, "_ZN2ge7SessionD1Ev", SLOT(session_end), kNeeded, "graph sessions"},
    {kRunner,
     "_ZN2ge7Session8AddGraphEjRKNS_5GraphERKSt3mapINS_12AscendStringES5_St4lessIS5_ESaISt4pairIKS5_S5_EEE",
     SLOT(add_graph), kNeeded, "compiling graphs"},
    {kRunner, "_ZN2ge7Session11RemoveGraphEj", SLOT(remove_graph), kNeeded, "releasing graphs"},
    {kRunner, "_ZN2ge7Session12CompileGraphEj", SLOT(compile_graph), kNeeded, "compiling graphs"},
    {kRunner, "_ZN2ge7Session23GetCompiledGraphSummaryEj", SLOT(summary), kNeeded, "compiling graphs"},
    {kRunner, "_ZNK2ge20CompiledGraphSummary8IsStaticEv", SLOT(is_static), kNeeded, "compiling graphs"},
    {kRunner, "_ZNK2ge20CompiledGraphSummary15GetOutputShapesERSt6vectorINS_5ShapeESaIS2_EE", SLOT(output_shapes),
     kNeeded, "sizes of results"},
    {kRunner, "_ZNK2ge20CompiledGraphSummary15GetOutputDtypesERSt6vectorINS_8DataTypeESaIS2_EE",
     SLOT(output_dtypes), kNeeded, "element types of results"},
    {kRunner, "_ZNK2ge20CompiledGraphSummary18GetConstMemorySizeERm", SLOT(const_bytes), kOptional,
     "keeping constants in the caller's memory"},
    {kRunner, "_ZNK2ge20CompiledGraphSummary20GetFeatureMemorySizeERm", SLOT(feature_bytes), kOptional,
     "sharing work memory between graphs"},
    {kRunner, "_ZNK2ge20CompiledGraphSummary31GetFeatureMemoryBaseRefreshableERb", SLOT(refreshable), kOptional,
     "sharing work memory between graphs"},
    {kRunner, "_ZN2ge7Session23SetGraphConstMemoryBaseEjPKvm", SLOT(set_const_memory), kOptional,
     "keeping constants in the caller's memory"},
    {kRunner, "_ZN2ge7Session28UpdateGraphFeatureMemoryBaseEjPKvm", SLOT(update_feature_memory), kOptional,
     "sharing work memory between graphs"},
    {kRunner, "_ZNK2ge7Session25RegisterExternalAllocatorEPKvSt10shared_ptrINS_9AllocatorEE",
     SLOT(register_allocator), kOptional, "results in the caller's memory when their size is not known before"},
    {kRunner,
     "_ZN2ge7Session23RunGraphWithStreamAsyncEjPvRKSt6vectorINS_6TensorESaIS3_EERS5_",
     SLOT(run_old), kOptional, "running graphs on CANN without GeSessionLoadGraph"},
    {kRunner, "GeSessionLoadGraph", SLOT(load_graph), kOptional, "loading graphs before their first run"},
    {kRunner, "GeSessionExecuteGraphWithStreamAsync", SLOT(execute_graph), kOptional, "running graphs at low cost"},
};

#undef SLOT

std::string Where(void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

}  // namespace

Api& Functions() {
  static Api api{};
  return api;
}

std::vector<Finding> Open(Api& api) {
  std::vector<Finding> found;
  struct Library {
    const char* name;
    const char* purpose;
    bool required;
    void* handle;
  };
  Library libraries[] = {{kAcl, "device, memory and streams", kNeeded, nullptr},
                         {kGraph, "graph objects", kNeeded, nullptr},
                         {kRunner, "graph sessions", kNeeded, nullptr},
                         {kHccl, "process groups without torch", kOptional, nullptr}};
  for (Library& library : libraries) {
    library.handle = dlopen(library.name, RTLD_NOW | RTLD_LOCAL);
    const char* text = library.handle == nullptr ? dlerror() : nullptr;
    found.push_back({library.name, nullptr, library.purpose, library.required, library.handle != nullptr,
                     text != nullptr ? text : std::string()});
  }
  for (const Row& row : kRows) {
    void* handle = nullptr;
    for (const Library& library : libraries) {
      if (std::strcmp(library.name, row.library) == 0) handle = library.handle;
    }
    if (handle == nullptr) continue;  // the library's own finding says enough
    void* function = dlsym(handle, row.symbol);
    std::memcpy(reinterpret_cast<char*>(&api) + row.slot, &function, sizeof(function));
    found.push_back({row.library, row.symbol, row.purpose, row.required, function != nullptr,
                     function != nullptr ? Where(function) : std::string()});
  }
  return found;
}

bool StringLess::operator()(const AscendString& a, const AscendString& b) const {
  return Functions().string_less(&a, b);
}

AscendString Text(const std::string& text) {
  AscendString made;  // an empty handle owns nothing, so the constructor may build over it
  Functions().string_make(&made, text.c_str());
  return made;
}

OptionMap Map(const Options& options) {
  OptionMap made;
  for (const auto& [key, value] : options) made.emplace(Text(key), Text(value));
  return made;
}

std::string GeErrorText() {
  if (Functions().error_text == nullptr) return "";
  char* found = gec_old_error_text(Functions().error_text);
  std::string text = found != nullptr ? found : "";
  std::free(found);
  return text;
}

}  // namespace cann
