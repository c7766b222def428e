/* Loaded into a server (LD_PRELOAD): steps the server's wall clock by a number of whole seconds, read from the
 * file at DUESTREAM_TEST_CLOCK. The file has a native 64-bit integer, and a test changes it while the server runs. The
 * monotonic clock is not changed, as with a real step. System calls are made directly, because an allocator may ask for
 * the time before the libraries below it are ready. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *step;

__attribute__((constructor)) static void map_step(void) {
  const char *path = getenv("DUESTREAM_TEST_CLOCK");
  int fd = path ? open(path, O_RDONLY) : -1;
  if (fd < 0) return;
  void *at = mmap(NULL, sizeof *step, PROT_READ, MAP_SHARED, fd, 0);
  if (at != MAP_FAILED) step = at;
  close(fd);
}

int clock_gettime(clockid_t id, struct timespec *ts) {
  int result = (int)syscall(SYS_clock_gettime, id, ts);
  if (result == 0 && step && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) ts->tv_sec += *step;
  return result;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
  (void)zone;
  struct timespec ts;
  int result = clock_gettime(CLOCK_REALTIME, &ts);
  *tv = (struct timeval){.tv_sec = ts.tv_sec, .tv_usec = ts.tv_nsec / 1000};
  return result;
}

time_t time(time_t *t) {
  struct timespec ts;
  if (clock_gettime(CLOCK_REALTIME, &ts) != 0) return (time_t)-1;
  if (t) *t = ts.tv_sec;
  return ts.tv_sec;
}
