/* A CUDA driver and an NVML without a GPU. Each call of the driver becomes a line of the file in
 * DRIVER_CALLS: process id and function. NVML finds the number of GPUs in DRIVER_GPUS. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NO_DEVICE = 100, NOT_FOUND = 500 };

static void record(const char *name) {
  const char *path = getenv("DRIVER_CALLS");
  char line[256];
  int length = snprintf(line, sizeof line, "%d %s\n", (int)getpid(), name);
  int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
  if (file < 0) return;
  if (write(file, line, (size_t)length) != length) abort();
  close(file);
}

static int find(const char *name, void **function) {
  record(name);
  *function = strcmp(name, "cuInit") && strcmp(name, "cuDriverGetVersion") ? NULL
              : dlsym(RTLD_DEFAULT, name);
  return *function ? SUCCESS : NOT_FOUND;
}

int cuInit(unsigned flags) {
  (void)flags;
  record("cuInit");
  return NO_DEVICE;
}

int cuDriverGetVersion(int *version) {
  record("cuDriverGetVersion");
  *version = 13000;
  return SUCCESS;
}

int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) {
  (void)version, (void)flags;
  return find(name, function);
}

int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags,
                        void *status) {
  (void)version, (void)flags, (void)status;
  return find(name, function);
}

int nvmlInit(void) { return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) {
  const char *gpus = getenv("DRIVER_GPUS");
  *count = gpus ? (unsigned)atoi(gpus) : 0;
  return SUCCESS;
}
