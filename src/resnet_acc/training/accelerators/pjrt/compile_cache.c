/* Keeps what the plugin compiled, so that a second start loads it instead of compiling again.
 *
 * torch-xla has a cache of its own (XLA_PERSISTENT_CACHE_PATH), which writes and never finds: to load an entry it calls
 * a function that its client for plugins lacks ("Deserializing serialized executable not supported", pytorch/xla issues
 * 8930 and 9094). The plugin itself can load what it serialised, as it does for JAX, and so this stands before its
 * PJRT_Client_Compile: one file for each program in the folder that CACHE_VARIABLE names; without one nothing is kept.
 *
 * A file holds the program and the compile options too. They are compared byte by byte, so the name, a 64-bit hash,
 * need not be free of collisions. The caller's part of the key is the folder: what else a compiled program depends on
 * (plugin, driver, card, flags) has to be in its name. Files are written under another name and renamed; a file that is
 * cut off or changed fails its checksum, one that the plugin refuses is compiled and written anew, and where nothing
 * can be written nothing is kept: the cache can never fail a compilation.
 */
#define _POSIX_C_SOURCE 200809L /* mkstemp, utimensat */
#include "compile_cache.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CACHE_VARIABLE "RESNET_ACC_PJRT_COMPILE_CACHE"
#define MAGIC "resnet_acc pjrt\1" /* 16 bytes with the 0; the 1 is this layout's version */

/* PJRT_Program. */
typedef struct {
  size_t struct_size;
  void *extension_start;
  const char *code;
  size_t code_size;
  const char *format;
  size_t format_size;
} Program;

/* PJRT_Client_Compile_Args. */
typedef struct {
  size_t struct_size;
  void *extension_start;
  void *client;
  const Program *program;
  const char *options; /* a serialised CompileOptionsProto */
  size_t options_size;
  void *executable; /* out */
} CompileArgs;

/* PJRT_LoadedExecutable_GetExecutable_Args; what comes out is the caller's to destroy. */
typedef struct {
  size_t struct_size;
  void *extension_start;
  void *loaded;
  void *executable; /* out */
} GetExecutableArgs;

/* PJRT_Executable_Serialize_Args. */
typedef struct {
  size_t struct_size;
  void *extension_start;
  void *executable;
  const char *bytes; /* out; lives as long as `holder`, which `delete_holder` deletes */
  size_t bytes_size;
  void *holder;
  void (*delete_holder)(void *);
} SerializeArgs;

/* PJRT_Executable_DeserializeAndLoad_Args. */
typedef struct {
  size_t struct_size;
  void *extension_start;
  void *client;
  const char *bytes;
  size_t bytes_size;
  void *loaded; /* out */
  const char *options; /* go before those that were serialised */
  size_t options_size;
} DeserializeArgs;

/* PJRT_Error_Destroy_Args and PJRT_Executable_Destroy_Args. */
typedef struct {
  size_t struct_size;
  void *extension_start;
  void *object;
} DestroyArgs;

_Static_assert(sizeof(Program) == 48 && sizeof(CompileArgs) == 56, "PJRT_Program, PJRT_Client_Compile_Args");
_Static_assert(sizeof(GetExecutableArgs) == 32, "PJRT_LoadedExecutable_GetExecutable_Args");
_Static_assert(sizeof(SerializeArgs) == 56 && sizeof(DeserializeArgs) == 64, "PJRT_Executable_..._Args");

enum { FORMAT, CODE, OPTIONS, EXECUTABLE, PARTS };

typedef struct {
  const char *bytes;
  size_t size;
} Part;

/* The beginning of a file; the four parts follow. */
typedef struct {
  char magic[16];
  uint64_t sizes[PARTS];
  uint64_t checksum; /* of the parts */
} Header;

static size_t num_hits, num_kept;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static void count(size_t *number) {
  pthread_mutex_lock(&counting);
  ++*number;
  pthread_mutex_unlock(&counting);
}

static Function function_at(void *const *plugin, int number) {
  Function function;
  memcpy(&function, &plugin[number], sizeof function); /* ISO C has no cast from an object's address */
  return function;
}

/* FNV-1a with 64 bits (draft-eastlake-fnv, section 2). */
static uint64_t fnv(uint64_t hash, Part part) {
  for (size_t i = 0; i < part.size; i++) hash = (hash ^ (unsigned char)part.bytes[i]) * 0x100000001b3u;
  return hash;
}

static uint64_t hash_of(const Part *parts, int number) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int i = 0; i < number; i++) {
    Part size = {(const char *)&parts[i].size, sizeof parts[i].size};
    hash = fnv(fnv(hash, size), parts[i]);
  }
  return hash;
}

/* Whether an error came; it is freed. */
static int failed(void *const *plugin, PJRT_Error *error) {
  DestroyArgs args = {sizeof args, NULL, error};
  if (error) function_at(plugin, ERROR_DESTROY)(&args);
  return error != NULL;
}

/* A whole file, or NULL. The caller frees it. */
static char *read_file(const char *path, size_t *size) {
  struct stat status;
  char *bytes = NULL;
  size_t done = 0;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return NULL;
  if (!fstat(file, &status) && S_ISREG(status.st_mode) && status.st_size > 0) bytes = malloc((size_t)status.st_size);
  while (bytes && done < (size_t)status.st_size) {
    ssize_t got = read(file, bytes + done, (size_t)status.st_size - done);
    if (got <= 0) {
      free(bytes);
      bytes = NULL;
    } else {
      done += (size_t)got;
    }
  }
  close(file);
  *size = done;
  return bytes;
}

/* Point parts[EXECUTABLE] into a file's bytes if it is whole and was made of the other parts. */
static int fits(const char *bytes, size_t size, Part *parts) {
  Header header;
  size_t at = sizeof header;
  if (size < sizeof header) return 0;
  memcpy(&header, bytes, sizeof header);
  if (memcmp(header.magic, MAGIC, sizeof header.magic)) return 0;
  for (int i = 0; i < PARTS; i++) {
    if (header.sizes[i] > size - at) return 0;
    if (i == EXECUTABLE) parts[i] = (Part){bytes + at, header.sizes[i]};
    else if (header.sizes[i] != parts[i].size || memcmp(bytes + at, parts[i].bytes, parts[i].size)) return 0;
    at += header.sizes[i];
  }
  return at == size && header.checksum == hash_of(parts, PARTS);
}

/* Whether the program could be loaded from that file. */
static int load(const char *path, CompileArgs *args, Part *parts, void *const *plugin) {
  size_t size = 0;
  char *bytes = read_file(path, &size);
  int loaded = 0;
  if (!bytes) return 0;
  if (fits(bytes, size, parts)) {
    DeserializeArgs load = {sizeof load, NULL, args->client, parts[EXECUTABLE].bytes, parts[EXECUTABLE].size,
                            NULL, args->options, args->options_size};
    loaded = !failed(plugin, function_at(plugin, EXECUTABLE_DESERIALIZE_AND_LOAD)(&load)) && load.loaded;
    if (loaded) args->executable = load.loaded;
  }
  free(bytes);
  if (loaded) utimensat(AT_FDCWD, path, NULL, 0); /* what was used last is removed last */
  return loaded;
}

static int write_parts(FILE *file, const Part *parts) {
  Header header;
  memset(&header, 0, sizeof header);
  memcpy(header.magic, MAGIC, sizeof header.magic);
  for (int i = 0; i < PARTS; i++) header.sizes[i] = parts[i].size;
  header.checksum = hash_of(parts, PARTS);
  if (fwrite(&header, sizeof header, 1, file) != 1) return 0;
  for (int i = 0; i < PARTS; i++)
    if (parts[i].size && fwrite(parts[i].bytes, parts[i].size, 1, file) != 1) return 0;
  return 1;
}

static void write_file(const char *path, const Part *parts) {
  const size_t size = strlen(path) + sizeof ".XXXXXX";
  char *temporary = malloc(size);
  FILE *file = NULL;
  int written = 0, descriptor;
  if (!temporary) return;
  snprintf(temporary, size, "%s.XXXXXX", path);
  descriptor = mkstemp(temporary);
  if (descriptor >= 0) file = fdopen(descriptor, "wb");
  if (file) {
    written = write_parts(file, parts);
    written = !fclose(file) && written;
  } else if (descriptor >= 0) {
    close(descriptor);
  }
  if (written && !rename(temporary, path)) count(&num_kept);
  else if (descriptor >= 0) unlink(temporary);
  free(temporary);
}

static void keep(const char *path, void *loaded, Part *parts, void *const *plugin) {
  GetExecutableArgs get = {sizeof get, NULL, loaded, NULL};
  if (failed(plugin, function_at(plugin, LOADED_EXECUTABLE_GET_EXECUTABLE)(&get)) || !get.executable) return;
  SerializeArgs serialize = {sizeof serialize, NULL, get.executable, NULL, 0, NULL, NULL};
  if (!failed(plugin, function_at(plugin, EXECUTABLE_SERIALIZE)(&serialize))) {
    parts[EXECUTABLE] = (Part){serialize.bytes, serialize.bytes_size};
    if (serialize.bytes_size) write_file(path, parts);
    if (serialize.delete_holder) serialize.delete_holder(serialize.holder);
  }
  DestroyArgs destroy = {sizeof destroy, NULL, get.executable};
  failed(plugin, function_at(plugin, EXECUTABLE_DESTROY)(&destroy));
}

PJRT_Error *compile_cached(void *compile_args, void *const *plugin, Function compile) {
  CompileArgs *args = compile_args;
  const char *folder = getenv(CACHE_VARIABLE);
  char path[4096];
  PJRT_Error *error;
  if (!folder || !*folder || args->struct_size < sizeof *args || !args->program ||
      args->program->struct_size < sizeof *args->program)
    return compile(args);
  Part parts[PARTS] = {{args->program->format, args->program->format_size},
                       {args->program->code, args->program->code_size},
                       {args->options, args->options_size},
                       {NULL, 0}};
  int length = snprintf(path, sizeof path, "%s/%016llx", folder, (unsigned long long)hash_of(parts, EXECUTABLE));
  if (length < 0 || (size_t)length >= sizeof path) return compile(args);
  if (load(path, args, parts, plugin)) {
    count(&num_hits);
    return NULL;
  }
  error = compile(args);
  if (!error && args->executable) keep(path, args->executable, parts, plugin);
  return error;
}

/* Programs that were loaded instead of compiled, and those that were written, since this process began. */
__attribute__((visibility("default"))) size_t resnet_acc_pjrt_cache_hits(void) { return num_hits; }
__attribute__((visibility("default"))) size_t resnet_acc_pjrt_cache_kept(void) { return num_kept; }
