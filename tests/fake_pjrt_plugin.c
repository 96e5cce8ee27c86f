/* A PJRT plugin that does nothing, for the tests of the shim. What it is like is said by -D when it is compiled:
 *   API_MAJOR, API_MINOR    the version that it says it has
 *   FUNCTIONS               entries of its table
 *   OPTIONS_SIZE            bytes of the PJRT_ExecuteOptions that it knows; smaller ones it refuses, as the real one does
 *   VERSION_SIZE            what its PJRT_Api_Version says of its own size
 *   GIVE_NOTHING, NO_SYMBOL, NO_EXECUTE
 *
 * What Execute was given can be read back through seen_*().
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#ifndef API_MAJOR
#define API_MAJOR 0
#endif
#ifndef API_MINOR
#define API_MINOR 76
#endif
#ifndef FUNCTIONS
#define FUNCTIONS 120
#endif
#ifndef OPTIONS_SIZE
#define OPTIONS_SIZE 80
#endif
#ifndef VERSION_SIZE
#define VERSION_SIZE 24
#endif

struct args { size_t struct_size; void *extension_start; void *executable; unsigned char *options; void *rest[6]; };
struct name_args { size_t struct_size; void *extension_start; void *client; const char *name; size_t name_size; };

static size_t seen_size, calls;
static unsigned char seen[4096];
static int error; /* its address stands for a PJRT_Error */

size_t seen_options_size(void) { return seen_size; }
size_t seen_calls(void) { return calls; }
const unsigned char *seen_options(void) { return seen; }
void *the_error(void) { return &error; }

static void *platform_name(struct name_args *args) {
  if (args->struct_size < sizeof *args) return &error;
  args->name = "cuda";
  args->name_size = 4;
  return NULL;
}

static void *execute(struct args *args) {
  calls++;
  seen_size = 0;
  if (args->struct_size < sizeof *args) return &error;
  if (!args->options) return &error;
  memcpy(&seen_size, args->options, sizeof seen_size);
  if (seen_size < OPTIONS_SIZE) return &error;
  memcpy(seen, args->options, seen_size < sizeof seen ? seen_size : sizeof seen);
  return args->executable ? NULL : &error; /* an error of the execution itself */
}

static char flags[256]; /* XLA_FLAGS as Client_Create or Client_Compile saw it last */
const char *seen_flags(void) { return flags; }

static void *see_flags(void *args) {
  const char *given = getenv("XLA_FLAGS");
  (void)args;
  strncpy(flags, given ? given : "unset", sizeof flags - 1);
  return NULL;
}

static void *serialize(size_t *args) { return *args < 56 ? &error : NULL; }

static void *other(void *args) { (void)args; return NULL; }

static struct {
  size_t struct_size;
  void *extension_start;
  struct { size_t struct_size; void *extension_start; int major, minor; } version;
  void *(*functions[FUNCTIONS < 100 ? 100 : FUNCTIONS])(void *);
} table;

const void *
#ifdef NO_SYMBOL
GetSomethingElse(void) {
#else
GetPjrtApi(void) {
#endif
  table.struct_size = 40 + FUNCTIONS * sizeof(void *);
  table.version.struct_size = VERSION_SIZE;
  table.version.major = API_MAJOR;
  table.version.minor = API_MINOR;
  for (int i = 0; i < FUNCTIONS; i++) table.functions[i] = other;
  table.functions[10] = table.functions[20] = see_flags;
  table.functions[87] = (void *(*)(void *))serialize;
  table.functions[12] = (void *(*)(void *))platform_name;
#ifndef NO_EXECUTE
  table.functions[55] = (void *(*)(void *))execute;
#else
  table.functions[55] = NULL;
#endif
#ifdef GIVE_NOTHING
  return NULL;
#else
  return &table;
#endif
}
