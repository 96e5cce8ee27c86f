/* A PJRT plugin that does nothing, for the tests of the shim. What it is like is said by -D when it is compiled:
 *   API_MAJOR, API_MINOR    the version that it says it has
 *   FUNCTIONS               entries of its table
 *   OPTIONS_SIZE            bytes of the PJRT_ExecuteOptions that it knows; smaller ones it refuses, as the real one does
 *   VERSION_SIZE            what its PJRT_Api_Version says of its own size
 *   GIVE_NOTHING, NO_SYMBOL, NO_EXECUTE, NO_SERIALIZE, NO_LOAD
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

/* A compiled program is the text of what it was made from; code "bad" does not compile. */
struct program { size_t struct_size; void *extension_start; const char *code; size_t code_size; const char *format; size_t format_size; };
struct compile_args { size_t struct_size; void *extension_start; void *client; struct program *program; const char *options; size_t options_size; char *made; };
struct get_args { size_t struct_size; void *extension_start; char *loaded; char *made; };
struct serialize_args { size_t struct_size; void *extension_start; char *made; const char *bytes; size_t size; void *holder; void (*delete)(void *); };
struct load_args { size_t struct_size; void *extension_start; void *client; const char *bytes; size_t size; char *made; const char *options; size_t options_size; };

static struct { size_t compiled, loaded, errors_freed, executables_freed, holders_freed; } counts;
size_t count_compiled(void) { return counts.compiled; }
size_t count_loaded(void) { return counts.loaded; }
size_t count_errors_freed(void) { return counts.errors_freed; }
size_t count_executables_freed(void) { return counts.executables_freed; }
size_t count_holders_freed(void) { return counts.holders_freed; }
static char load_options[64];
const char *seen_load_options(void) { return load_options; }

static char *text_of(const char *bytes, size_t size) {
  char *text = calloc(size + 1, 1);
  memcpy(text, bytes, size);
  return text;
}

static void *compile(struct compile_args *args) {
  see_flags(args);
  if (!args) return NULL; /* a test that only wants to know the flags */
  counts.compiled++;
  if (args->program->code_size == 3 && !memcmp(args->program->code, "bad", 3)) return &error;
  args->made = text_of(args->program->code, args->program->code_size);
  return NULL;
}

static void *get_executable(struct get_args *args) {
  args->made = args->loaded;
  return NULL;
}

static void delete_holder(void *holder) { free(holder); counts.holders_freed++; }

static void *serialize(struct serialize_args *args) {
#ifdef NO_SERIALIZE
  (void)args;
  return &error;
#else
  args->holder = malloc(strlen(args->made) + 8);
  strcpy(args->holder, "kept:");
  strcat(args->holder, args->made);
  args->bytes = args->holder;
  args->size = strlen(args->holder);
  args->delete = delete_holder;
  return NULL;
#endif
}

static void *load(struct load_args *args) {
#ifndef NO_LOAD
  if (args->size > 5 && !memcmp(args->bytes, "kept:", 5)) {
    counts.loaded++;
    memset(load_options, 0, sizeof load_options);
    memcpy(load_options, args->options, args->options_size < 63 ? args->options_size : 63);
    args->made = text_of(args->bytes + 5, args->size - 5);
    return NULL;
  }
#endif
  (void)delete_holder;
  return &error;
}

static void *free_error(void **args) { counts.errors_freed += args[2] == &error; return NULL; }
static void *free_executable(void *args) { (void)args; counts.executables_freed++; return NULL; }

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
  table.functions[0] = (void *(*)(void *))free_error;
  table.functions[10] = see_flags;
  table.functions[20] = (void *(*)(void *))compile;
  table.functions[40] = free_executable;
  table.functions[49] = (void *(*)(void *))serialize;
  table.functions[51] = (void *(*)(void *))get_executable;
  table.functions[56] = (void *(*)(void *))load;
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
