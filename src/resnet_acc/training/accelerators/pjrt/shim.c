/* Stands between torch-xla 2.9 and OpenXLA's CUDA PJRT plugin, which do not know each other. build.py compiles it.
 *
 * Three things keep them apart, and each is one entry of the plugin's table of functions:
 *   PJRT_Client_PlatformName       torch-xla ends the process over a device whose platform is called "cuda"
 *                                  (tensor_impl.cpp); here it is called "nvgpu".
 *   PJRT_LoadedExecutable_Execute  torch-xla hands over the PJRT_ExecuteOptions of August 2025 (80 bytes), which a
 *                                  newer plugin refuses as too small; here it gets them in a larger struct filled up
 *                                  with zeros, which mean "not given" in every field added so far.
 *   PJRT_Client_Compile            torch-xla's own compile cache cannot load what it kept; compile_cache.c can.
 * Two are entered with XLA_FLAGS lengthened, and left with it as it was:
 *   PJRT_Client_Create, and PJRT_Client_Compile for the first time. The plugin's XLA reads XLA_FLAGS once, in one of
 *                                  them. torch-xla's own XLA, a year older, reads it too and ends the process over a
 *                                  name or value it does not know, so newer flags must be there for the plugin alone.
 * Everything else is the plugin's own. The table is copied, so that the plugin's is left as it is.
 *
 * Source of every size and offset below: xla/pjrt/c/pjrt_c_api.h of github.com/openxla/xla, read at API 0.60 and 0.94
 * (commit 0882740a8496c82a8dc8a25fadba88ca342fb0aa), and the CHANGELOG.md beside it up to 0.105. Within a major version
 * fields are only added at the end ("Always add new fields to the end of the struct"); the one rearrangement was 0.57.
 * A plugin takes a struct larger than the one it knows (ActualStructSizeIsGreaterOrEqual, pjrt_c_api_helpers.cc).
 *
 * C, not a Python callback: torch-xla holds Python's lock while another thread calls Execute, so a callback would wait
 * for ever.
 */
#define _POSIX_C_SOURCE 200809L /* setenv, strdup */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compile_cache.h"

#define PLUGIN_VARIABLE "RESNET_ACC_PJRT_PLUGIN_PATH"
#define FLAGS_VARIABLE "RESNET_ACC_PJRT_PLUGIN_XLA_FLAGS" /* flags for the plugin's XLA alone */
#define PLATFORM_NAME "nvgpu"
#define FIRST_MINOR 57      /* CHANGELOG.md, 0.57: "Rearranged fields in the PJRT_Api" */
#define OPTIONS_BYTES 256   /* PJRT_ExecuteOptions: 80 bytes at 0.64, 88 at 0.76, 112 at 0.78, 120 at 0.97 */

/* PJRT_Api: struct_size at byte 0, extension_start at 8, pjrt_api_version {struct_size 16, extension_start 24,
 * major_version 32, minor_version 36}, functions from 40 on. */
typedef struct {
  size_t struct_size;
  void *extension_start;
  struct {
    size_t struct_size;
    void *extension_start;
    int major_version;
    int minor_version;
  } version;
  void *functions[];
} Api;

/* PJRT_Client_PlatformName_Args. */
typedef struct {
  size_t struct_size;
  void *extension_start;
  void *client;
  const char *platform_name;  /* out, byte 24; lives as long as the client */
  size_t platform_name_size;  /* out, byte 32 */
} PlatformNameArgs;

/* PJRT_LoadedExecutable_Execute_Args, all of its ten fields. */
typedef struct {
  size_t struct_size;
  void *extension_start;
  void *executable;
  void *options;              /* PJRT_ExecuteOptions*, byte 24; "Only needs to stay alive for [...] the Execute call" */
  void *argument_lists;
  size_t num_devices;
  size_t num_args;
  void *output_lists;
  void *device_complete_events;
  void *execute_device;
} ExecuteArgs;

_Static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8 && sizeof(int) == 4, "a 64-bit machine");
_Static_assert(offsetof(Api, version.major_version) == 32 && offsetof(Api, functions) == 40, "PJRT_Api");
_Static_assert(sizeof(PlatformNameArgs) == 40, "PJRT_Client_PlatformName_Args");
_Static_assert(offsetof(ExecuteArgs, options) == 24 && sizeof(ExecuteArgs) == 80, "PJRT_LoadedExecutable_Execute_Args");

static PJRT_Error *(*plugin_platform_name)(PlatformNameArgs *);
static PJRT_Error *(*plugin_execute)(ExecuteArgs *);
static Function plugin_client_create;
static Function plugin_client_compile;
static void *const *plugin_functions;
static Api *table; /* what GetPjrtApi gives; NULL where the plugin cannot be used */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char reason[1024]; /* why there is no table; empty where there is one */

/* One line on stderr, and kept: torch-xla ends the process when it gets no table, and Python asks before that. */
static void complain(const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(reason, sizeof reason, format, values);
  va_end(values);
  fprintf(stderr, "resnet_acc: %s\n", reason);
}

static PJRT_Error *platform_name(PlatformNameArgs *args) {
  if (args->struct_size < sizeof *args) return plugin_platform_name(args); /* refuses it in its own words */
  args->platform_name = PLATFORM_NAME;
  args->platform_name_size = sizeof PLATFORM_NAME - 1;
  return NULL;
}

/* An error can only be had from the plugin: it refuses arguments that say they have 0 bytes, before it reads any. */
static PJRT_Error *refuse(void) {
  ExecuteArgs nothing;
  memset(&nothing, 0, sizeof nothing);
  return plugin_execute(&nothing);
}

static PJRT_Error *execute(ExecuteArgs *args) {
  union { size_t struct_size; unsigned char bytes[OPTIONS_BYTES]; } options;
  void *original;
  PJRT_Error *error;
  size_t size;
  if (args->struct_size < offsetof(ExecuteArgs, options) + sizeof args->options || !args->options)
    return plugin_execute(args); /* nothing to enlarge; the plugin says what is wrong */
  original = args->options;
  memcpy(&size, original, sizeof size);
  if (size < sizeof size || size > sizeof options) {
    fprintf(stderr, "resnet_acc: torch-xla's PJRT_ExecuteOptions has %zu bytes and the shim knows up to %d; "
            "use a torch-xla and a resnet_acc of the same time\n", size, OPTIONS_BYTES);
    return refuse(); /* cutting it off would drop what was asked for */
  }
  memset(&options, 0, sizeof options);
  memcpy(&options, original, size);
  options.struct_size = sizeof options;
  args->options = &options;
  error = plugin_execute(args);
  args->options = original;
  return error;
}

/* Call with FLAGS_VARIABLE at the end of XLA_FLAGS. One thread at a time: the environment is the whole process's. */
static PJRT_Error *with_flags(Function function, void *args) {
  static pthread_mutex_t environment = PTHREAD_MUTEX_INITIALIZER;
  const char *more = getenv(FLAGS_VARIABLE);
  const char *given;
  char *before = NULL, *together;
  PJRT_Error *error;
  size_t size;
  if (!more || !*more) return function(args);
  pthread_mutex_lock(&environment);
  given = getenv("XLA_FLAGS");
  if (given) before = strdup(given);
  size = (before ? strlen(before) : 0) + strlen(more) + 2;
  together = malloc(size);
  if (together) {
    snprintf(together, size, "%s %s", before ? before : "", more);
    setenv("XLA_FLAGS", together, 1);
  }
  error = function(args);
  if (before) setenv("XLA_FLAGS", before, 1);
  else unsetenv("XLA_FLAGS");
  pthread_mutex_unlock(&environment);
  free(together);
  free(before);
  return error;
}

static PJRT_Error *client_create(void *args) { return with_flags(plugin_client_create, args); }

static PJRT_Error *compile(void *args) { return compile_cached(args, plugin_functions, plugin_client_compile); }

static PJRT_Error *client_compile(void *args) {
  static int flags_were_read; /* a compilation that meets another's end only lengthens the flags once more */
  PJRT_Error *error;
  if (flags_were_read) return compile(args);
  error = with_flags(compile, args);
  flags_were_read = 1;
  return error;
}

static int fits(const Api *api, const char *path) {
  const size_t needed = offsetof(Api, functions) + (EXECUTABLE_DESERIALIZE_AND_LOAD + 1) * sizeof(void *);
  const struct { int place; const char *name; } used[] = {
      {ERROR_DESTROY, "PJRT_Error_Destroy"},
      {CLIENT_CREATE, "PJRT_Client_Create"},
      {CLIENT_PLATFORM_NAME, "PJRT_Client_PlatformName"},
      {CLIENT_COMPILE, "PJRT_Client_Compile"},
      {EXECUTABLE_DESTROY, "PJRT_Executable_Destroy"},
      {EXECUTABLE_SERIALIZE, "PJRT_Executable_Serialize"},
      {LOADED_EXECUTABLE_GET_EXECUTABLE, "PJRT_LoadedExecutable_GetExecutable"},
      {LOADED_EXECUTABLE_EXECUTE, "PJRT_LoadedExecutable_Execute"},
      {EXECUTABLE_DESERIALIZE_AND_LOAD, "PJRT_Executable_DeserializeAndLoad"},
  };
  const char *mend = "install another jax-cuda12-pjrt or jax-cuda13-pjrt";
  if (api->struct_size < needed || api->version.struct_size < sizeof api->version) {
    complain("the PJRT_Api of %s has %zu bytes (its version %zu), and %zu (%zu) are needed; %s", path, api->struct_size,
             api->version.struct_size, needed, sizeof api->version, mend);
    return 0;
  }
  if (api->version.major_version != 0 || api->version.minor_version < FIRST_MINOR) {
    complain("%s speaks PJRT API %d.%d, and 0.%d or a later 0.x is needed; %s", path, api->version.major_version,
             api->version.minor_version, FIRST_MINOR, mend);
    return 0;
  }
  for (size_t i = 0; i < sizeof used / sizeof *used; i++) {
    if (!api->functions[used[i].place]) {
      complain("%s has no %s; %s", path, used[i].name, mend);
      return 0;
    }
  }
  return 1;
}

static const Api *load(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void *symbol = library ? dlsym(library, "GetPjrtApi") : NULL;
  const Api *(*get)(void);
  const Api *api;
  if (!symbol) {
    const char *why = dlerror();
    complain("the PJRT plugin %s cannot be used: %s", path, why ? why : "its GetPjrtApi is nothing");
    return NULL;
  }
  memcpy(&get, &symbol, sizeof get); /* ISO C has no cast from an object's address to a function's */
  api = get();
  if (!api) complain("GetPjrtApi of %s gave nothing", path);
  return api;
}

static void make_table(void) {
  const char *path = getenv(PLUGIN_VARIABLE);
  PJRT_Error *(*our_name)(PlatformNameArgs *) = platform_name;
  PJRT_Error *(*our_execute)(ExecuteArgs *) = execute;
  Function our_create = client_create, our_compile = client_compile;
  const Api *api;
  Api *copy;
  if (!path || !*path) {
    complain(PLUGIN_VARIABLE " is not set; call prepare_environment() of resnet_acc.training.accelerators.pjrt before "
             "torch_xla opens its device");
    return;
  }
  api = load(path);
  if (!api || !fits(api, path)) return;
  copy = malloc(api->struct_size);
  if (!copy) {
    complain("there is no memory for a table of %zu bytes", api->struct_size);
    return;
  }
  memcpy(copy, api, api->struct_size);
  memcpy(&plugin_platform_name, &copy->functions[CLIENT_PLATFORM_NAME], sizeof plugin_platform_name);
  memcpy(&plugin_execute, &copy->functions[LOADED_EXECUTABLE_EXECUTE], sizeof plugin_execute);
  memcpy(&copy->functions[CLIENT_PLATFORM_NAME], &our_name, sizeof our_name);
  memcpy(&copy->functions[LOADED_EXECUTABLE_EXECUTE], &our_execute, sizeof our_execute);
  memcpy(&plugin_client_create, &copy->functions[CLIENT_CREATE], sizeof plugin_client_create);
  memcpy(&plugin_client_compile, &copy->functions[CLIENT_COMPILE], sizeof plugin_client_compile);
  memcpy(&copy->functions[CLIENT_CREATE], &our_create, sizeof our_create);
  memcpy(&copy->functions[CLIENT_COMPILE], &our_compile, sizeof our_compile);
  plugin_functions = api->functions;
  table = copy;
}

/* What torch-xla looks up in a plugin. NULL, and one line on stderr, where there is nothing to give. */
__attribute__((visibility("default"))) const void *GetPjrtApi(void) {
  pthread_once(&once, make_table);
  return table;
}

/* Why GetPjrtApi gave NULL; "" where it did not. */
__attribute__((visibility("default"))) const char *resnet_acc_pjrt_reason(void) {
  pthread_once(&once, make_table);
  return reason;
}
