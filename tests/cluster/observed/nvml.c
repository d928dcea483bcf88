/* An NVML with two GPUs that do not exist. Their values rise and fall with a period of two minutes. */
#include <time.h>

enum { SUCCESS = 0, GPUS = 2, PERIOD = 120 };

static const unsigned long long GIB = 1ull << 30;
static unsigned places[GPUS] = {0, 1};

struct utilization {
  unsigned gpu, memory;
};
struct memory {
  unsigned long long total, free, used;
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
