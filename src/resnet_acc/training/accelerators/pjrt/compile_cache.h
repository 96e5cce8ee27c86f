/* What shim.c and compile_cache.c share. Sizes and places as described in shim.c. */
#ifndef RESNET_ACC_COMPILE_CACHE_H
#define RESNET_ACC_COMPILE_CACHE_H
#include <stddef.h>

typedef struct PJRT_Error PJRT_Error; /* opaque: only the plugin can make one */
typedef PJRT_Error *(*Function)(void *);

/* The functions' numbers: places in PJRT_Api after its header, counted from 0 in the header file's order. Plugins 0.7.1
 * and 0.11.2 were asked: given arguments of 0 bytes, each function names its own struct in the error. */
enum {
  ERROR_DESTROY = 0,
  CLIENT_CREATE = 10,
  CLIENT_PLATFORM_NAME = 12,
  CLIENT_COMPILE = 20,
  EXECUTABLE_DESTROY = 40,
  EXECUTABLE_SERIALIZE = 49,
  LOADED_EXECUTABLE_GET_EXECUTABLE = 51,
  LOADED_EXECUTABLE_EXECUTE = 55,
  EXECUTABLE_DESERIALIZE_AND_LOAD = 56,
};

/* PJRT_Client_Compile out of the cache, or through `compile`, whose result is then kept. */
PJRT_Error *compile_cached(void *args, void *const *plugin, Function compile);
#endif
