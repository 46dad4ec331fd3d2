/* Preloaded: shows an empty list of kernel modules where the kernel has none at all. libcufile 1.20
 * waits for /proc/modules in an endless loop. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef FILE *open_function(const char *, const char *);

static FILE *redirected(const char *function, const char *path, const char *mode) {
  open_function *const real = (open_function *)dlsym(RTLD_NEXT, function);
  const int is_missing = strcmp(path, "/proc/modules") == 0 && access(path, F_OK) != 0;
  return real(is_missing ? "/dev/null" : path, mode);
}

FILE *fopen(const char *path, const char *mode) { return redirected("fopen", path, mode); }

/* What std::ifstream calls, in libstdc++. */
FILE *fopen64(const char *path, const char *mode) { return redirected("fopen64", path, mode); }
