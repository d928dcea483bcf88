/* An NVML with two GPUs that do not exist. Their values rise and fall with a period of two minutes.
 * One of them reports one XID error. */
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, TIMEOUT = 10, GPUS = 2, PERIOD = 120, XID_ERROR = 8, XID = 31 };

static const unsigned long long GIB = 1ull << 30;
static unsigned places[GPUS] = {0, 1};

struct utilization {
  unsigned gpu, memory;
};
struct memory {
  unsigned long long total, free, used;
};

struct event {
  unsigned *gpu;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

/* Return a number that rises from 0 to 60 and falls again, later on the second GPU. */
static unsigned wave(const unsigned *gpu) {
  unsigned second = (unsigned)(time(0) + 20 * *gpu) % PERIOD;
  return second < PERIOD / 2 ? second : PERIOD - second;
}

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = GPUS;
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, unsigned **device) {
  *device = &places[index % GPUS];
  return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(unsigned *gpu, struct utilization *found) {
  found->gpu = found->memory = 55 + wave(gpu) / 2;
  return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(unsigned *gpu, struct memory *found) {
  found->total = 80 * GIB;
  found->used = (50 + wave(gpu) / 4) * GIB;
  found->free = found->total - found->used;
  return SUCCESS;
}

int nvmlDeviceGetPowerUsage(unsigned *gpu, unsigned *milliwatts) {
  *milliwatts = 1000 * (300 + 5 * wave(gpu));
  return SUCCESS;
}

int nvmlDeviceGetTemperature(unsigned *gpu, int sensor, unsigned *celsius) {
  (void)sensor;
  *celsius = 45 + wave(gpu) / 2;
  return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(unsigned *gpu, int type, int counter, unsigned long long *count) {
  (void)gpu, (void)type, (void)counter;
  *count = 0;
  return SUCCESS;
}

int nvmlDeviceGetIndex(unsigned *gpu, unsigned *index) {
  *index = *gpu;
  return SUCCESS;
}

int nvmlEventSetCreate(void **set) {
  *set = places;
  return SUCCESS;
}

int nvmlDeviceRegisterEvents(unsigned *gpu, unsigned long long types, void *set) {
  (void)gpu, (void)types, (void)set;
  return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, struct event *found, unsigned milliseconds) {
  static int calls = 0;
  (void)set;
  if (calls++ > 0) {
    usleep(1000 * milliseconds);
    return TIMEOUT;
  }
  *found = (struct event){.gpu = &places[1], .type = XID_ERROR, .data = XID};
  return SUCCESS;
}
