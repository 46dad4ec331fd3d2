/* Faults on demand in the file calls of a process: preload it, then arm it.
 *
 * fault_arm(rules, path, mark) takes rules "op:when:action", joined by ';', for calls on files whose
 * path contains `path`:
 *   op      open, odirect (an open with O_DIRECT), pwrite, pread, dpwrite and dpread (of those,
 *           by descriptors with O_DIRECT), read, write, fdatasync, fsync, rename, fallocate, unlink,
 *           mkdir, rmdir, ftruncate, fchmod, or * for all of these; also flock and setlk (record
 *           locks), not in *
 *   when    n (the n-th call of this op, from 1), n+ (from then on), or *
 *   action  an errno name; short=N (move at most N bytes); kill-before, kill-after (SIGKILL);
 *           int-before, int-after (SIGINT); log (only write it down)
 * With `op` *, calls of all kinds are counted together. Every rule that fires appends the line
 * "op n action path" to the file `mark`, so that a test knows that its fault was there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define MAX_RULES 16

enum action { FAIL, SHORT, KILL_BEFORE, KILL_AFTER, INT_BEFORE, INT_AFTER, LOG };

struct rule {
  char op[16];
  unsigned long first, last;
  enum action action;
  long value; /* errno or byte count */
  char text[32];
  atomic_ulong calls;
};

static struct rule rules[MAX_RULES];
static int num_rules;
static char match[PATH_MAX];
static int mark_fd = -1;
static atomic_int armed;

static const struct {
  const char *name;
  int code;
} errnos[] = {{"EIO", EIO},       {"ENOSPC", ENOSPC},   {"EDQUOT", EDQUOT}, {"EINVAL", EINVAL},
              {"EINTR", EINTR},   {"EROFS", EROFS},     {"EACCES", EACCES}, {"EOPNOTSUPP", EOPNOTSUPP},
              {"ENOSYS", ENOSYS}, {"ESTALE", ESTALE},   {"EPERM", EPERM},   {"EMFILE", EMFILE},
              {"ELOOP", ELOOP},   {"EAGAIN", EAGAIN},   {"ENOLCK", ENOLCK}};

static int parse(struct rule *rule, char *text) {
  char *save = NULL;
  char *op = strtok_r(text, ":", &save);
  char *when = strtok_r(NULL, ":", &save);
  char *action = strtok_r(NULL, ":", &save);
  if (!op || !when || !action) return -1;
  snprintf(rule->op, sizeof rule->op, "%s", op);
  snprintf(rule->text, sizeof rule->text, "%s", action);
  if (strcmp(when, "*") == 0) {
    rule->first = 1, rule->last = ULONG_MAX;
  } else {
    char *end = NULL;
    rule->first = strtoul(when, &end, 10);
    rule->last = *end == '+' ? ULONG_MAX : rule->first;
  }
  atomic_store(&rule->calls, 0);
  if (strncmp(action, "short=", 6) == 0) {
    rule->action = SHORT, rule->value = strtol(action + 6, NULL, 10);
    return 0;
  }
  static const char *const names[] = {"", "", "kill-before", "kill-after", "int-before", "int-after", "log"};
  for (int i = KILL_BEFORE; i <= LOG; ++i) {
    if (strcmp(action, names[i]) != 0) continue;
    rule->action = (enum action)i;
    return 0;
  }
  for (size_t i = 0; i < sizeof errnos / sizeof *errnos; ++i) {
    if (strcmp(action, errnos[i].name) != 0) continue;
    rule->action = FAIL, rule->value = errnos[i].code;
    return 0;
  }
  return -1;
}

/* Returns 0, or -1 for rules that it does not understand. */
int fault_arm(const char *text, const char *path, const char *mark) {
  char copy[1024];
  atomic_store(&armed, 0);
  num_rules = 0;
  snprintf(copy, sizeof copy, "%s", text);
  snprintf(match, sizeof match, "%s", path);
  char *save = NULL;
  for (char *one = strtok_r(copy, ";", &save); one; one = strtok_r(NULL, ";", &save)) {
    if (num_rules == MAX_RULES || parse(&rules[num_rules], one) != 0) return -1;
    ++num_rules;
  }
  if (mark_fd >= 0) syscall(SYS_close, mark_fd);
  mark_fd = (int)syscall(SYS_openat, AT_FDCWD, mark, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (mark_fd < 0) return -1;
  atomic_store(&armed, 1);
  return 0;
}

void fault_disarm(void) { atomic_store(&armed, 0); }

static int is_lock(const char *op) { return strcmp(op, "flock") == 0 || strcmp(op, "setlk") == 0; }

static struct rule *find_either(const char *op, const char *other, const char *path) {
  if (!atomic_load(&armed) || strstr(path, match) == NULL) return NULL;
  struct rule *hit = NULL;
  for (int i = 0; i < num_rules; ++i) {
    struct rule *rule = &rules[i];
    const int is_any = strcmp(rule->op, "*") == 0 && !is_lock(op);
    if (!is_any && strcmp(rule->op, op) != 0 && strcmp(rule->op, other) != 0) continue;
    const unsigned long n = atomic_fetch_add(&rule->calls, 1) + 1;
    if (n < rule->first || n > rule->last || hit) continue;
    hit = rule;
    char line[PATH_MAX + 128];
    const int length = snprintf(line, sizeof line, "%s %lu %s %s\n", op, n, rule->text, path);
    if (length > 0) syscall(SYS_write, mark_fd, line, (size_t)length);
  }
  if (hit && hit->action == KILL_BEFORE) syscall(SYS_kill, getpid(), SIGKILL);
  if (hit && hit->action == INT_BEFORE) syscall(SYS_kill, getpid(), SIGINT);
  return hit;
}

static struct rule *find(const char *op, const char *path) { return find_either(op, op, path); }

static void after(const struct rule *rule) {
  const int saved = errno;
  if (rule && rule->action == KILL_AFTER) syscall(SYS_kill, getpid(), SIGKILL);
  if (rule && rule->action == INT_AFTER) syscall(SYS_kill, getpid(), SIGINT);
  errno = saved;
}

static int fails(const struct rule *rule) {
  if (!rule || rule->action != FAIL) return 0;
  errno = (int)rule->value;
  return 1;
}

static const char *path_of_fd(int fd, char *buffer) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, buffer, PATH_MAX - 1);
  buffer[length > 0 ? length : 0] = 0;
  return buffer;
}

/* A path as the kernel will see it: descriptors by name, relative ones from their directory. */
static const char *path_at(int dir_fd, const char *path, char *buffer) {
  if (path == NULL) return "";
  if (strncmp(path, "/proc/self/fd/", 14) == 0) return path_of_fd(atoi(path + 14), buffer);
  if (path[0] == '/') return path;
  if (dir_fd == AT_FDCWD) {
    if (syscall(SYS_getcwd, buffer, PATH_MAX) < 0) return path;
  } else {
    path_of_fd(dir_fd, buffer);
  }
  const size_t length = strlen(buffer);
  snprintf(buffer + length, PATH_MAX - length, "/%s", path);
  return buffer;
}

static int open_at(int dir_fd, const char *path, int flags, mode_t mode) {
  char buffer[PATH_MAX];
  struct rule *rule = find(flags & O_DIRECT ? "odirect" : "open", path_at(dir_fd, path, buffer));
  if (fails(rule)) return -1;
  const int fd = (int)syscall(SYS_openat, dir_fd, path, flags, mode);
  after(rule);
  return fd;
}

#define OPEN_MODE(flags, mode)                             \
  mode_t mode = 0;                                         \
  if (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE) { \
    va_list list;                                          \
    va_start(list, flags);                                 \
    mode = va_arg(list, mode_t);                           \
    va_end(list);                                          \
  }

int open(const char *path, int flags, ...) {
  OPEN_MODE(flags, mode)
  return open_at(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
  OPEN_MODE(flags, mode)
  return open_at(AT_FDCWD, path, flags, mode);
}
int openat(int dir_fd, const char *path, int flags, ...) {
  OPEN_MODE(flags, mode)
  return open_at(dir_fd, path, flags, mode);
}
int openat64(int dir_fd, const char *path, int flags, ...) {
  OPEN_MODE(flags, mode)
  return open_at(dir_fd, path, flags, mode);
}

static ssize_t move(const char *op, long number, int fd, void *data, size_t nbytes, off_t offset) {
  if (!atomic_load(&armed)) return syscall(number, fd, data, nbytes, offset);
  char buffer[PATH_MAX];
  const int is_direct = (syscall(SYS_fcntl, fd, F_GETFL) & O_DIRECT) != 0;
  char direct[16];
  snprintf(direct, sizeof direct, "d%s", is_direct ? op : "");
  struct rule *rule = find_either(op, direct, path_of_fd(fd, buffer));
  if (fails(rule)) return -1;
  size_t most = nbytes;
  if (rule && rule->action == SHORT && nbytes > (size_t)rule->value) {
    most = (size_t)rule->value;
    /* Direct I/O moves whole blocks; some network file systems then report any part of them. */
    const size_t whole = is_direct ? (most + 4095) / 4096 * 4096 : most;
    if (whole < nbytes) nbytes = whole;
  }
  const ssize_t moved = syscall(number, fd, data, nbytes, offset);
  after(rule);
  return moved > (ssize_t)most ? (ssize_t)most : moved;
}

ssize_t pwrite(int fd, const void *data, size_t nbytes, off_t offset) {
  return move("pwrite", SYS_pwrite64, fd, (void *)data, nbytes, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t nbytes, off_t offset) {
  return move("pwrite", SYS_pwrite64, fd, (void *)data, nbytes, offset);
}
ssize_t pread(int fd, void *data, size_t nbytes, off_t offset) {
  return move("pread", SYS_pread64, fd, data, nbytes, offset);
}
ssize_t pread64(int fd, void *data, size_t nbytes, off_t offset) {
  return move("pread", SYS_pread64, fd, data, nbytes, offset);
}
ssize_t read(int fd, void *data, size_t nbytes) { return move("read", SYS_read, fd, data, nbytes, 0); }
ssize_t write(int fd, const void *data, size_t nbytes) {
  return move("write", SYS_write, fd, (void *)data, nbytes, 0);
}

static int on_fd(const char *op, long number, int fd, long a, long b, long c) {
  char buffer[PATH_MAX];
  struct rule *rule = atomic_load(&armed) ? find(op, path_of_fd(fd, buffer)) : NULL;
  if (fails(rule)) return -1;
  const int result = (int)syscall(number, fd, a, b, c);
  after(rule);
  return result;
}

int fdatasync(int fd) { return on_fd("fdatasync", SYS_fdatasync, fd, 0, 0, 0); }
int fsync(int fd) { return on_fd("fsync", SYS_fsync, fd, 0, 0, 0); }
int fchmod(int fd, mode_t mode) { return on_fd("fchmod", SYS_fchmod, fd, (long)mode, 0, 0); }
int flock(int fd, int how) { return on_fd("flock", SYS_flock, fd, how, 0, 0); }

static int control(int fd, int command, long argument) {
  if (command == F_SETLK || command == F_SETLKW)
    return on_fd("setlk", SYS_fcntl, fd, command, argument, 0);
  return (int)syscall(SYS_fcntl, fd, command, argument);
}

#define CONTROL_ARGUMENT(command, argument) \
  va_list list;                             \
  va_start(list, command);                  \
  const long argument = va_arg(list, long); \
  va_end(list);

int fcntl(int fd, int command, ...) {
  CONTROL_ARGUMENT(command, argument)
  return control(fd, command, argument);
}
int fcntl64(int fd, int command, ...) {
  CONTROL_ARGUMENT(command, argument)
  return control(fd, command, argument);
}

int fallocate(int fd, int mode, off_t offset, off_t nbytes) {
  return on_fd("fallocate", SYS_fallocate, fd, mode, offset, nbytes);
}
int fallocate64(int fd, int mode, off_t offset, off_t nbytes) {
  return on_fd("fallocate", SYS_fallocate, fd, mode, offset, nbytes);
}

static int rename_at(int old_dir, const char *old, int new_dir, const char *new) {
  char buffer[PATH_MAX];
  struct rule *rule = find("rename", path_at(new_dir, new, buffer));
  if (fails(rule)) return -1;
  const int result = (int)syscall(SYS_renameat2, old_dir, old, new_dir, new, 0);
  after(rule);
  return result;
}
int rename(const char *old, const char *new) { return rename_at(AT_FDCWD, old, AT_FDCWD, new); }
int renameat(int old_dir, const char *old, int new_dir, const char *new) {
  return rename_at(old_dir, old, new_dir, new);
}

int ftruncate(int fd, off_t nbytes) { return on_fd("ftruncate", SYS_ftruncate, fd, nbytes, 0, 0); }
int ftruncate64(int fd, off_t nbytes) { return on_fd("ftruncate", SYS_ftruncate, fd, nbytes, 0, 0); }

static int unlink_at(int dir_fd, const char *path, int flags) {
  char buffer[PATH_MAX];
  struct rule *rule = find(flags & AT_REMOVEDIR ? "rmdir" : "unlink", path_at(dir_fd, path, buffer));
  if (fails(rule)) return -1;
  const int result = (int)syscall(SYS_unlinkat, dir_fd, path, flags);
  after(rule);
  return result;
}
int unlink(const char *path) { return unlink_at(AT_FDCWD, path, 0); }
int unlinkat(int dir_fd, const char *path, int flags) { return unlink_at(dir_fd, path, flags); }

int rmdir(const char *path) { return unlink_at(AT_FDCWD, path, AT_REMOVEDIR); }

static int mkdir_at(int dir_fd, const char *path, mode_t mode) {
  char buffer[PATH_MAX];
  struct rule *rule = find("mkdir", path_at(dir_fd, path, buffer));
  if (fails(rule)) return -1;
  const int result = (int)syscall(SYS_mkdirat, dir_fd, path, mode);
  after(rule);
  return result;
}
int mkdir(const char *path, mode_t mode) { return mkdir_at(AT_FDCWD, path, mode); }
int mkdirat(int dir_fd, const char *path, mode_t mode) { return mkdir_at(dir_fd, path, mode); }
