/* The runner's interface to Python: plain C, called through ctypes.
 *
 * Every function that can fail returns one of GEC_*; gec_error() then has the text, for the calling thread. Functions
 * may be called from any thread. One session exists in a process at a time; its end waits for the calls that use it, and
 * refuses those that begin meanwhile. No exception leaves a function. */
#ifndef GE_CANN_RUNNER_H_
#define GE_CANN_RUNNER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define GEC_VERSION 4 /* of this interface */

enum {
  GEC_OK = 0,
  GEC_MISSING = 1,  /* a library or function of CANN is not there */
  GEC_DEVICE = 2,   /* the device runtime refused */
  GEC_ENGINE = 3,   /* the graph engine refused */
  GEC_STATE = 4,    /* no session, an ended one, or another process's */
  GEC_ARGUMENT = 5, /* a graph cannot take what it was given */
  GEC_MEMORY = 6    /* out of device memory */
};

enum { GEC_ON_DEVICE = 0, GEC_ON_HOST = 1 };

typedef struct gec_graph gec_graph;
typedef struct gec_result gec_result; /* memory that the graph engine allocated for a result */

/* What is known of one result. */
typedef struct {
  void* address;
  uint64_t bytes;
  int32_t dtype; /* GE's header number */
  int32_t placement;
  int32_t rank;
  int32_t reserved;
  int64_t dims[25];
  gec_result* owner; /* null if the caller owns the memory */
} gec_value;

typedef void (*gec_report)(void* context, const char* library, const char* symbol, const char* purpose, int required,
                           int found, const char* detail);
/* The caller's device memory. Called from any thread of the graph engine. Null means out of memory. */
typedef void* (*gec_malloc)(void* context, void* stream, uint64_t bytes);
typedef void (*gec_free)(void* context, void* stream, void* address);

int gec_version(void);
const char* gec_error(void);

/* Opens CANN's libraries and looks up the functions; says of each what became of it. Repeating it is cheap. */
int gec_open(gec_report report, void* context);
int gec_device_count(uint32_t* count);

/* Begins the session: the process's options count once a process. Options are key, value, key, value, ... */
int gec_session_open(int32_t device, const char* const* global_options, size_t n_global,
                     const char* const* session_options, size_t n_session);
/* Ends the session, but not from within a function that the runner calls, and releases all that belongs to it. The device runtime and the graph engine are shut down as well
 * if nobody else in the process uses them. */
int gec_session_close(int shut_down);
int gec_session_is_open(void);
/* Chip name and CANN version, "" where CANN does not say; core counts -1 likewise. */
int gec_device_facts(char* chip, size_t chip_room, char* version, size_t version_room, int64_t* cube_cores,
                     int64_t* vector_cores);

/* Null functions: the runner's own pool. */
int gec_use_allocator(gec_malloc take, gec_free give, void* context);

int gec_graph_add(const char* name, const void* bytes, size_t size, const char* const* options, size_t n_options,
                  size_t n_inputs, size_t n_outputs, gec_graph** graph);
int gec_graph_compile(gec_graph* graph);
int gec_graph_info(gec_graph* graph, int* is_static, size_t* n_outputs, uint64_t* const_bytes,
                   uint64_t* feature_bytes);
/* What compiling found out of a result of a static graph; of others nothing is known before a run (dtype 28). */
int gec_graph_output(gec_graph* graph, size_t index, gec_value* value);
/* Options for loading, and the stream of the first run. */
int gec_graph_load(gec_graph* graph, void* stream, const char* const* options, size_t n_options);
/* Describes an input; to be repeated only when the description changes. */
int gec_graph_describe(gec_graph* graph, size_t index, int32_t placement, int32_t dtype, int32_t rank,
                       const int64_t* dims);
/* Launches one run. An output address of 0 leaves the memory to the graph engine; an output may have the address of
 * an input that it updates. Inputs must live until the stream is through. results may be null for static graphs. */
int gec_graph_run(gec_graph* graph, void* stream, const uint64_t* inputs, const uint64_t* outputs, gec_value* results);
void gec_graph_free(gec_graph* graph);
void gec_result_free(gec_result* result);

int gec_stream_new(void** stream);
int gec_stream_free(void* stream);
int gec_stream_wait(void* stream);
/* idle is 1 if nothing is left to do on the stream. */
int gec_stream_idle(void* stream, int* idle);
/* Memory of the runner's pool: blocks that are given back serve later requests on the same stream. */
int gec_memory_new(void* stream, uint64_t bytes, void** address);
int gec_memory_free(void* address);
/* Process groups of HCCL. One rank asks for the root information, everybody gets those GEC_ROOT_BYTES from it and opens
 * the group, which waits for all its ranks. The name, at most GEC_NAME_BYTES with its end, is what collectives in graphs
 * call the group. Groups are to be closed before the session ends. */
#define GEC_ROOT_BYTES 4108
#define GEC_NAME_BYTES 128
int gec_group_root(void* info);
int gec_group_open(uint32_t ranks, const void* info, uint32_t rank, void** group, char* name);
int gec_group_close(void* group);

/* kind: 1 host to device, 2 device to host, 3 device to device; queued on the stream. */
int gec_copy(void* to, const void* from, uint64_t bytes, int kind, void* stream);

/* Functions of the Python that calls, by address: PyList_GetItem, PyObject_Type, PyType_IsSubtype, Py_DecRef, the
 * tensor type, and the function dltensor_from_py_object_no_sync of its DLPack exchange table. */
typedef struct {
  void* item;
  void* type_of;
  void* is_subtype;
  void* release;
  void* type;
  void* describe;
  int64_t device_type; /* of DLPack, that all must be on */
} gec_tensor_functions;

/* Addresses of the n tensors of a Python list. With learn, their looks are written, at most 27 numbers a tensor; without,
 * every tensor must look as it did. 1 if so and all are dense and on the device, else 0, perhaps with a Python error set.
 * The caller holds Python's lock. */
int gec_tensors_read(void* list, size_t n, const gec_tensor_functions* functions, int learn, int64_t* looks,
                     uint64_t* addresses);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif /* GE_CANN_RUNNER_H_ */
