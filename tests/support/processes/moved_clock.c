/* Library for LD_PRELOAD that moves the wall clock of a process.
   A2A_TEST_CLOCK names a file with the offset in microseconds, as a native 64-bit integer.
   The monotonic clocks are unchanged. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile int64_t *offset_us;

__attribute__((constructor)) static void open_offset(void) {
  const char *path = getenv("A2A_TEST_CLOCK");
  int file = path ? open(path, O_RDONLY) : -1;
  void *memory = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  if (memory != MAP_FAILED) offset_us = memory;
}

static int64_t real_us(void) {
  static int (*real)(clockid_t, struct timespec *);
  struct timespec now;
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  real(CLOCK_REALTIME, &now);
  return now.tv_sec * 1000000LL + now.tv_nsec / 1000 + (offset_us ? *offset_us : 0);
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
  int64_t now = real_us();
  (void)zone;
  tv->tv_sec = now / 1000000;
  tv->tv_usec = now % 1000000;
  return 0;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE) return real(id, ts);
  int64_t now = real_us();
  ts->tv_sec = now / 1000000;
  ts->tv_nsec = now % 1000000 * 1000;
  return 0;
}

time_t time(time_t *result) {
  time_t now = real_us() / 1000000;
  if (result) *result = now;
  return now;
}
